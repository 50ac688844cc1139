#include "horon/torch_bindings/collectives/point_to_point.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/message_order.h"

namespace horon {
namespace {

using core::concat;
using torch_detail::Message;
using torch_detail::MessageOrder;

// The order of this session. Runtimes are never deleted, so the address says which one it is.
std::shared_ptr<MessageOrder> messages() {
  struct OfSession {
    std::mutex mutex;
    const core::Runtime* runtime = nullptr;
    std::shared_ptr<MessageOrder> order;
  };
  static auto& latest = *new OfSession;  // on the heap for ever: calls may come at the end
  const core::Runtime* const runtime = &ops::runtime();
  const std::lock_guard lock(latest.mutex);
  if (latest.runtime != runtime) {
    latest.order = std::make_shared<MessageOrder>("");
    latest.runtime = runtime;
  }
  return latest.order;
}

Message checked(int from, int to, const PointToPointOptions& options) {
  const ProcessSet& set = options.process_set;
  const std::vector<int> ranks = set.ranks();
  for (const int one : {from == kAnySource ? to : from, to}) {
    if (std::binary_search(ranks.begin(), ranks.end(), one)) continue;
    throw Error(ErrorCode::InvalidArgument,
                concat("send and receive: rank ", one, " is not in the process set, whose ranks ",
                       "are ", core::list_ranks(ranks)));
  }
  if (set.is_world()) return {from, to, options.tag};
  ops::runtime().require_member(set.id());  // throws if this rank has left it
  return {from, to, options.tag, core::set_text(set.id())};
}

}  // namespace

void send(const at::Tensor& tensor, int to, const PointToPointOptions& options) {
  (void)messages()->run(checked(rank(), to, options), tensor)->results();
}

at::Tensor recv(const at::Tensor& tensor, int from, const PointToPointOptions& options) {
  if (from == kAnySource) return recv_async(tensor, from, options).wait();
  return messages()->run(checked(from, rank(), options), tensor)->results().front();
}

Handle send_async(const at::Tensor& tensor, int to, const PointToPointOptions& options) {
  return Handle(messages()->start(checked(rank(), to, options), tensor));
}

ReceiveHandle recv_async(const at::Tensor& tensor, int from, const PointToPointOptions& options) {
  const Message message = checked(from, rank(), options);
  if (from != kAnySource) {
    return {Handle(messages()->start(message, tensor)), std::make_shared<std::atomic<int>>(from)};
  }
  std::vector<int> others = options.process_set.ranks();
  std::erase(others, rank());
  auto [pending, source] = messages()->start_from_any(others, message, tensor);
  return {Handle(std::move(pending)), std::move(source)};
}

int ReceiveHandle::source() const {
  (void)wait();
  return *source_;
}

}  // namespace horon
