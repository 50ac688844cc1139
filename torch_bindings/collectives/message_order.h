// Messages between two ranks have no names, only tags and an order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/torch_bindings/collectives/pending_collective.h"

namespace horon::torch_detail {

struct Message {
  int from = 0;  // ranks of the job; one of them is this rank
  int to = 0;
  int tag = 0;
  std::string of_set = {};  // part of the name; empty: the world
};

// The n-th send of one rank to another meets the n-th receive there, for each tag and set. A
// message is a broadcast among the two, in the process set that every two ranks have. Any thread
// of the program; threads that use one tag get numbers in the order of their calls.
class MessageOrder {
 public:
  enum class Compares : bool { Shapes, Elements };  // Elements: as many of them are enough
  // `begins`: what names begin with, so that messages of one object don't meet those of another.
  explicit MessageOrder(std::string begins, Compares compares = Compares::Shapes)
      : begins_(std::move(begins)), compares_(compares) {}

  // Sends the tensor, or receives into it. start() waits for nobody, since two ranks may both send
  // before they receive; run() returns when the message has ended. Throw Error(Limit) if too many
  // of the tag are under way, and then this is no message. What else is wrong with the call is the
  // other rank's error too.
  std::shared_ptr<PendingCollective> start(const Message& message, const at::Tensor& tensor);
  std::shared_ptr<PendingCollective> run(const Message& message, const at::Tensor& tensor);

  // So many may be under way from one rank to another with one tag; then the names come again.
  static constexpr size_t kNumbers = 1024;

 private:
  // The last message of a number.
  struct Last {
    std::weak_ptr<PendingCollective> message;
    bool blocking = false;
    bool is_under_way() const;
  };
  struct Sequence {
    uint64_t count = 0;
    std::vector<Last> last;  // of each number so far
  };

  // Under the mutex. The next message, and where it is noted.
  std::pair<std::shared_ptr<PendingCollective>, Last*> next(const Message& message,
                                                            const at::Tensor& tensor);

  const std::string begins_;
  const Compares compares_;
  std::mutex mutex_;
  std::map<std::tuple<int, int, int, std::string>, Sequence> sequences_;
};

}  // namespace horon::torch_detail
