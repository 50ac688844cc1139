// Ranks as threads of one process: the transport of simulations, tests and examples.
#pragma once

#include <memory>
#include <vector>

#include "horon/core/host/doorbell.h"
#include "horon/core/transport/transport.h"

namespace horon::core {

// Each rank's transport belongs to one thread; they share their mailboxes, so they may end in any
// order.
class InProcessTransport final : public Transport {
 public:
  // One transport for each rank of a new world.
  static std::vector<std::unique_ptr<Transport>> make_world(int size,
                                                            const WaitPolicy& policy = {});

  int rank() const override { return rank_; }
  int size() const override;
  void send(int to, SharedBytes message) override;
  std::optional<Message> receive() override;
  bool flushed() override { return true; }
  bool must_poll() const override { return false; }
  void wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) override;
  Doorbell& doorbell() noexcept override;
  WaitPolicy wait_policy() const noexcept override { return policy_; }

 private:
  struct Mailbox;
  using World = std::vector<Mailbox>;
  InProcessTransport(int rank, std::shared_ptr<World> world, const WaitPolicy& policy);
  Mailbox& mailbox(int rank) const;

  const int rank_;
  const std::shared_ptr<World> world_;
  const WaitPolicy policy_;
};

}  // namespace horon::core
