// A rank whose death the platform knows, while its thread lives on.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "horon/tests/core/runtime/forwarding_transport.h"
#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core::test_world {

// Once `known` is set, the platform says on every other rank that `rank` has ended.
struct Dead {
  int rank = 0;
  std::atomic<bool> known{false};
};

class KnowsTheDead final : public ForwardingTransport {
 public:
  KnowsTheDead(std::unique_ptr<Transport> below, const Dead& dead)
      : ForwardingTransport(std::move(below)), dead_(dead) {}

  bool must_poll() const override { return true; }
  std::vector<DeadPeer> dead_peers() override {
    if (!dead_.known) return {};
    return {{dead_.rank, "rank " + std::to_string(dead_.rank) + " (pid 4711)"}};
  }

 private:
  const Dead& dead_;
};

inline Hooks hooks_of(const Dead& dead) {
  Hooks hooks;
  hooks.wrap_transport = [&dead](int rank, std::unique_ptr<Transport> below) {
    if (rank == dead.rank) return below;
    return std::unique_ptr<Transport>(new KnowsTheDead(std::move(below), dead));
  };
  return hooks;
}

}  // namespace horon::core::test_world
