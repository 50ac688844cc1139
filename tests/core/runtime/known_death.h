// A rank whose death the platform knows, while its thread lives on.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "horon/core/transport/transport.h"
#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core::test_world {

// On every rank but `dead` the platform says, from some time on, that this one has ended.
struct Dead {
  int rank = 0;
  std::atomic<bool> known{false};
};

class KnowsTheDead final : public Transport {
 public:
  KnowsTheDead(std::unique_ptr<Transport> below, const Dead& dead)
      : below_(std::move(below)), dead_(dead) {}

  int rank() const override { return below_->rank(); }
  int size() const override { return below_->size(); }
  void send(int to, Bytes message) override { below_->send(to, std::move(message)); }
  std::optional<Message> receive() override { return below_->receive(); }
  bool flushed() override { return below_->flushed(); }
  bool must_poll() const override { return true; }
  void wait(std::chrono::nanoseconds timeout) override { below_->wait(timeout); }
  Doorbell& doorbell() noexcept override { return below_->doorbell(); }
  WaitPolicy wait_policy() const noexcept override { return below_->wait_policy(); }
  std::vector<DeadPeer> dead_peers() override {
    if (!dead_.known) return {};
    return {{dead_.rank, "rank " + std::to_string(dead_.rank) + " (pid 4711)"}};
  }

 private:
  const std::unique_ptr<Transport> below_;
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
