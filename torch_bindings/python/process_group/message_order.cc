#include "horon/torch_bindings/python/process_group/message_order.h"

#include "horon/core/base/collective_ban.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/ops/session/session.h"

namespace horon::python::process_group {

using torch_detail::Into;
using torch_detail::PendingCollective;

void MessageOrder::refuse_one_more(const Message& message, const std::string& name) {
  throw Error(ErrorCode::Limit,
              core::concat("tensor \"", name, "\": ", kNumbers, " messages from rank ",
                           message.from, " to rank ", message.to, " with tag ", message.tag,
                           " are under way, which is the limit: wait for the oldest of them, then "
                           "call again, or use several tags"));
}

// A message is a broadcast among the two ranks, in the process set that every two ranks have.
Pending MessageOrder::start(const Message& message, const at::Tensor& tensor) {
  core::refuse_if_banned("send or recv");  // before it is counted
  const uint32_t id = core::pair_set(message.from, message.to, size());
  const ProcessSet pair(id, core::members_of_pair(id, size()), rank());
  const std::lock_guard lock(mutex_);
  Sequence& sequence = sequences_[{message.from, message.to, message.tag}];
  const size_t number = sequence.count % kNumbers;
  const std::string name = core::concat("c10d.", group_, ".send ", message.from, " to ", message.to,
                                        ", tag ", message.tag, ", number ", number);
  if (number == sequence.last.size()) sequence.last.emplace_back();
  // Gone: the runtime has let go of it, so it has ended.
  const Pending last = sequence.last[number].lock();
  if (last != nullptr && !last->state().finished()) refuse_one_more(message, name);
  ++sequence.count;
  // In two pieces of memory: a weak_ptr to what make_shared() has made would keep all of it.
  const Pending pending(new PendingCollective(CollectiveKind::Broadcast, "send", name, pair));
  pending->set_root(message.from);
  pending->add(tensor, message.from == rank() ? Into::Nowhere : Into::Same);
  pending->submit(pending);
  sequence.last[number] = pending;
  return pending;
}

}  // namespace horon::python::process_group
