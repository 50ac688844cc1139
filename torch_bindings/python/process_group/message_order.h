// The messages between two members of a process group have no names, only tags and an order.
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

#include "horon/torch_bindings/python/process_group/operation.h"

namespace horon::python::process_group {

// The n-th send of one rank to another meets the n-th receive there, for each tag. They are counted
// apart from the collectives of the group, and from the messages of other groups. Any thread of the
// program; threads that use one tag get numbers in the order of their calls.
class MessageOrder {
 public:
  // `group`: what names begin with.
  explicit MessageOrder(std::string group) : group_(std::move(group)) {}

  // Ranks of the job; one of them is this rank. Sends the tensor, or receives into it.
  struct Message {
    int from = 0;
    int to = 0;
    int tag = 0;
  };
  // Waits for nobody, since two ranks may both send before they receive: throws Error(Limit) if too
  // many of the tag are under way, and then this is no message.
  Pending start(const Message& message, const at::Tensor& tensor);

 private:
  // So many may be under way from one rank to another with one tag; then the names come again.
  static constexpr size_t kNumbers = 1024;

  struct Sequence {
    uint64_t count = 0;
    std::vector<std::weak_ptr<torch_detail::PendingCollective>> last;  // of each number so far
  };

  [[noreturn]] static void refuse_one_more(const Message& message, const std::string& name);

  const std::string group_;
  std::mutex mutex_;
  std::map<std::tuple<int, int, int>, Sequence> sequences_;  // by sender, receiver and tag
};

}  // namespace horon::python::process_group
