// Alltoall, gather and scatter among ranks on several hosts: every two ranks exchange their blocks
// by messages, several of which are under way at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/hierarchical/exchange_window.h"
#include "horon/ops/hierarchical/hierarchical_exchange.h"
#include "horon/ops/hierarchical/messages.h"

namespace horon::ops {

// One object serves all kinds of a set: it gives the exchanges their tags. One thread at a time.
class MessageExchange final : public ExchangeMachine {
 public:
  MessageExchange(std::shared_ptr<Messages> messages, int rank, int size);

  bool same_in_parts(const core::Batch& /*like*/) const override { return false; }
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  class Running;

  const std::shared_ptr<Messages> messages_;
  const int rank_;
  const int size_;
  ExchangeWindow window_;
};

}  // namespace horon::ops
