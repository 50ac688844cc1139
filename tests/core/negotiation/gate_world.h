// A controller with a gate, for tests of what is frozen. The test plays the other member.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/negotiation/controller.h"
#include "horon/core/negotiation/ring_gate.h"
#include "horon/core/negotiation/wire_format.h"
#include "horon/tests/core/negotiation/test_messages.h"

namespace horon::core::gate_world {

using test_messages::tensor;

inline Ready ready_by_name(const std::string& name) {
  Ready ready;
  ready.name = name;
  ready.spec = tensor(name);
  return ready;
}

// The first plan of x.
inline Plan plan_of_x() {
  PlannedEntry x;
  x.id = 1;
  x.name = "x";
  x.spec = tensor("x");
  Plan plan;
  plan.batches.push_back({{std::move(x)}, {}});
  return plan;
}

// A member with a gate whose name x has been agreed once, and frozen at place 1.
class WithGate {
 public:
  explicit WithGate(int rank, const SpecPtr& x = tensor("x"), std::vector<int64_t> extents = {},
                    std::vector<int> host_of = {})
      : area_(RingGate::bytes(2) + 64) {
    void* area = area_.data();
    size_t space = area_.size();
    place_ = static_cast<std::byte*>(std::align(64, RingGate::bytes(2), area, space));
    gate_.emplace(place_, rank, 2, [this] { ++woken_; });
    Controller::Options options;
    options.rank = rank;
    options.size = 2;
    options.host_of = std::move(host_of);
    options.gate = &*gate_;
    options.freeze_after = 1;
    controller_.emplace(options);
    controller_->submit({1, "x", x, {}, std::move(extents)});
  }
  WithGate(const WithGate&) = delete;
  WithGate& operator=(const WithGate&) = delete;

  Controller* operator->() { return &*controller_; }
  RingGate& gate() { return *gate_; }
  // How often the other members of this host were woken.
  int woken() const { return woken_; }
  RingGate gate_of(int other) {
    return RingGate(place_, other, 2, [] {});
  }
  // For a member: x is planned, and then frozen at place 1.
  void freeze() {
    EXPECT_EQ(end_after(plan_of_x()), "");
    EXPECT_EQ(end_after(Freeze{{1}, {1}}), "");
  }
  // The error with which the controller ends when this item comes from the other member.
  std::string end_after(const Item& item, uint64_t applied = 0) {
    Envelope envelope;
    envelope.applied = applied;
    envelope.items.push_back(item);
    controller_->receive(controller_->is_coordinator() ? 1 : 0, encode(envelope));
    const Effects effects = controller_->take_effects();
    return effects.fatal ? effects.fatal->what() : "";
  }

 private:
  std::vector<std::byte> area_;
  std::byte* place_ = nullptr;
  int woken_ = 0;
  std::optional<RingGate> gate_;
  std::optional<Controller> controller_;
};

}  // namespace horon::core::gate_world
