// Sends and receives of this rank, in their order.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/torch_bindings/collectives/message_numbers.h"
#include "horon/torch_bindings/collectives/pending_collective.h"

namespace horon::torch_detail {

// A receive from any rank.
struct FromAny {
  std::shared_ptr<PendingCollective> pending;
  std::shared_ptr<const std::atomic<int>> source;  // the rank; -1 until it is known
};

// The n-th send of one rank to another meets the n-th receive there, for each tag and set. A
// message is a broadcast among the two, in the process set that every two ranks have. A receive
// from any rank takes the next message of the first rank that has sent one, once it has. Any thread
// of the program; threads that use one tag get numbers in the order of their calls.
class MessageOrder {
 public:
  enum class Compares : bool { Shapes, Elements };  // Elements: only their number
  // `begins`: what names begin with, so that messages of one object don't meet those of another.
  explicit MessageOrder(std::string begins, Compares compares = Compares::Shapes)
      : begins_(std::move(begins)),
        compares_(compares),
        numbers_(std::make_shared<MessageNumbers>(begins_)) {}

  // Sends the tensor, or receives into it. start() waits for nobody, since two ranks may both send
  // before they receive; run() returns when the message has ended. Throw Error(Limit) if too many
  // of the tag are in flight; then no message has been counted. Any other fault of the call is the
  // other rank's error too.
  std::shared_ptr<PendingCollective> start(const Message& message, const at::Tensor& tensor);
  std::shared_ptr<PendingCollective> run(const Message& message, const at::Tensor& tensor);
  // Receives into the tensor what comes from one of these ranks; `message.from` is ignored. A wrong
  // call counts no message.
  FromAny start_from_any(const std::vector<int>& sources, const Message& message,
                         const at::Tensor& tensor);

 private:
  std::shared_ptr<PendingCollective> prepare(const Message& message, const std::string& name) const;

  const std::string begins_;
  const Compares compares_;
  const std::shared_ptr<MessageNumbers> numbers_;  // receives from any rank may outlive this
};

}  // namespace horon::torch_detail
