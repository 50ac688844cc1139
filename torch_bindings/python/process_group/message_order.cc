#include "horon/torch_bindings/python/process_group/message_order.h"

#include "horon/core/base/collective_ban.h"
#include "horon/core/base/text.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/ops/session/session.h"

namespace horon::python::process_group {

using torch_detail::Into;
using torch_detail::PendingCollective;

// A message is a broadcast among the two ranks, in the process set that every two ranks have.
Pending MessageOrder::start(const Message& message, const at::Tensor& tensor) {
  core::refuse_if_banned("send or recv");  // before it is counted
  const uint32_t id = core::pair_set(message.from, message.to, size());
  const ProcessSet pair(id, core::members_of_pair(id, size()), rank());
  const std::lock_guard lock(mutex_);
  uint64_t& count = counts_[{message.from, message.to, message.tag}];
  const std::string name = core::concat("c10d.", group_, ".send ", message.from, " to ", message.to,
                                        ", tag ", message.tag, ", number ", count++ % kNumbers);
  auto pending = std::make_shared<PendingCollective>(CollectiveKind::Broadcast, "send", name, pair);
  pending->set_root(message.from);
  pending->add(tensor, message.from == rank() ? Into::Nowhere : Into::Same);
  pending->submit(pending);
  return pending;
}

}  // namespace horon::python::process_group
