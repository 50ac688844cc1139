// Two transports in one: shared memory to the ranks of this host, another one (MPI) to all others.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "horon/core/transport/shared_memory_transport.h"
#include "horon/core/transport/transport.h"

namespace horon::core {

class RoutedTransport final : public Transport {
 public:
  RoutedTransport(std::unique_ptr<SharedMemoryTransport> local, std::unique_ptr<Transport> remote);

  int rank() const override { return local_->rank(); }
  int size() const override { return local_->size(); }
  void send(int to, SharedBytes message) override;
  std::optional<Message> receive() override;
  bool flushed() override;
  // Nobody on another host can ring.
  bool must_poll() const override { return true; }
  void wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) override {
    local_->wait(timeout, policy);
  }
  Doorbell& doorbell() noexcept override { return local_->doorbell(); }
  WaitPolicy wait_policy() const noexcept override { return local_->wait_policy(); }
  std::vector<DeadPeer> dead_peers() override { return local_->dead_peers(); }
  void abandon() noexcept override {
    local_->abandon();
    remote_->abandon();
  }

 private:
  const std::unique_ptr<SharedMemoryTransport> local_;
  const std::unique_ptr<Transport> remote_;
  bool remote_first_ = false;
};

}  // namespace horon::core
