// A transport that forwards each call to the one below; tests override one call or two.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "horon/core/transport/transport.h"

namespace horon::core::test_world {

class ForwardingTransport : public Transport {
 public:
  explicit ForwardingTransport(std::unique_ptr<Transport> below) : below_(std::move(below)) {}

  int rank() const override { return below_->rank(); }
  int size() const override { return below_->size(); }
  void send(int to, SharedBytes message) override { below_->send(to, std::move(message)); }
  std::optional<Message> receive() override { return below_->receive(); }
  bool flushed() override { return below_->flushed(); }
  bool must_poll() const override { return below_->must_poll(); }
  void wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) override {
    below_->wait(timeout, policy);
  }
  Doorbell& doorbell() noexcept override { return below_->doorbell(); }
  WaitPolicy wait_policy() const noexcept override { return below_->wait_policy(); }

 private:
  const std::unique_ptr<Transport> below_;
};

}  // namespace horon::core::test_world
