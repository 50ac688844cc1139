#include "horon/torch_bindings/collectives/point_to_point.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "horon/core/base/collective_ban.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/pending_collective.h"

namespace horon {
namespace {

using core::concat;
using torch_detail::Into;
using torch_detail::PendingCollective;
using Pending = std::shared_ptr<PendingCollective>;

struct Message {
  int from = 0;
  int to = 0;
  const PointToPointOptions& options;
};

ProcessSet pair_of(const Message& message) {
  const uint32_t id = core::pair_set(message.from, message.to, size());
  return {id, core::members_of_pair(id, size()), rank()};
}

void check_members(const Message& message) {
  const std::vector<int> ranks = message.options.process_set.ranks();
  for (const int one : {message.from, message.to}) {
    if (std::binary_search(ranks.begin(), ranks.end(), one)) continue;
    throw Error(ErrorCode::InvalidArgument,
                concat("send and receive: rank ", one, " is not in the process set, whose ranks ",
                       "are ", core::list_ranks(ranks)));
  }
}

// The same on both ranks, and another one for each message of the last 1,024.
std::string name_of(const Message& message, uint32_t pair) {
  const uint32_t set = message.options.process_set.id();
  const std::string kind =
      concat("send ", message.from, " to ", message.to, ", tag ", message.options.tag,
             set == core::kWorldSet ? "" : concat(", set ", set));
  return concat(kind, ", number ", ops::call_counts().next(kind, pair));
}

Pending pending_message(const at::Tensor& tensor, const Message& message) {
  core::refuse_if_banned("send or recv");  // before it is counted
  check_members(message);
  const ProcessSet pair = pair_of(message);
  const auto pending = std::make_shared<PendingCollective>(CollectiveKind::Broadcast, "send",
                                                           name_of(message, pair.id()), pair);
  if (tensor.defined() && !tensor.device().is_cpu()) {
    pending->refuse(Error(ErrorCode::InvalidArgument,
                          concat("tensor \"", pending->name, "\": is on ", tensor.device(),
                                 "; only tensors on the CPU can be sent: copy it there")));
  }
  pending->set_root(message.from);
  pending->add(tensor, message.from == rank() ? Into::Nowhere : Into::Same);
  return pending;
}

Handle submit(const Pending& pending) {
  pending->submit(pending);
  return Handle(pending);
}

at::Tensor run(const Pending& pending) {
  pending->run(pending);
  return pending->results().front();
}

}  // namespace

void send(const at::Tensor& tensor, int to, const PointToPointOptions& options) {
  (void)run(pending_message(tensor, {rank(), to, options}));
}

at::Tensor recv(const at::Tensor& tensor, int from, const PointToPointOptions& options) {
  return run(pending_message(tensor, {from, rank(), options}));
}

Handle send_async(const at::Tensor& tensor, int to, const PointToPointOptions& options) {
  return submit(pending_message(tensor, {rank(), to, options}));
}

Handle recv_async(const at::Tensor& tensor, int from, const PointToPointOptions& options) {
  return submit(pending_message(tensor, {from, rank(), options}));
}

}  // namespace horon
