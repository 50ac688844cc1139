#include "horon/torch_bindings/collectives/message_order.h"

#include "horon/core/base/collective_ban.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"

namespace horon::torch_detail {
namespace {

using core::concat;

[[noreturn]] void refuse_one_more(const Message& message, const std::string& name) {
  throw Error(ErrorCode::Limit,
              concat("tensor \"", name, "\": ", MessageOrder::kNumbers, " messages from rank ",
                     message.from, " to rank ", message.to, " with tag ", message.tag,
                     " are under way, which is the limit: wait for the oldest of them, then ",
                     "call again, or use several tags"));
}

}  // namespace

bool MessageOrder::Last::is_under_way() const {
  // Gone: the runtime has let go of it, so it has ended.
  const std::shared_ptr<PendingCollective> last = message.lock();
  if (last == nullptr) return false;
  return blocking || !last->state().finished();  // a blocking one may be about to be submitted
}

std::pair<std::shared_ptr<PendingCollective>, MessageOrder::Last*> MessageOrder::next(
    const Message& message, const at::Tensor& tensor) {
  const uint32_t id = core::pair_set(message.from, message.to, size());
  const ProcessSet pair(id, core::members_of_pair(id, size()), rank(), ops::session_number());
  Sequence& sequence = sequences_[{message.from, message.to, message.tag, message.of_set}];
  const size_t number = sequence.count % kNumbers;
  const std::string name =
      concat(begins_, "send ", message.from, " to ", message.to, ", tag ", message.tag,
             message.of_set.empty() ? "" : ", ", message.of_set, ", number ", number);
  if (number == sequence.last.size()) sequence.last.emplace_back();
  if (sequence.last[number].is_under_way()) refuse_one_more(message, name);
  sequence.last[number] = {};
  ++sequence.count;
  // In two pieces of memory: a weak_ptr to what make_shared() has made would keep all of it.
  std::shared_ptr<PendingCollective> pending(
      new PendingCollective(CollectiveKind::Broadcast, "send", name, pair));
  pending->set_root(message.from);
  pending->shapes_may_differ = compares_ == Compares::Elements;
  pending->add(tensor, message.from == rank() ? Into::Nowhere : Into::Same);
  return {std::move(pending), &sequence.last[number]};
}

std::shared_ptr<PendingCollective> MessageOrder::start(const Message& message,
                                                       const at::Tensor& tensor) {
  core::refuse_if_banned("send or recv");  // before it is counted
  const std::lock_guard lock(mutex_);
  auto [pending, last] = next(message, tensor);
  pending->submit_in_turn(pending);
  last->message = pending;
  return pending;
}

std::shared_ptr<PendingCollective> MessageOrder::run(const Message& message,
                                                     const at::Tensor& tensor) {
  core::refuse_if_banned("send or recv");  // before it is counted
  std::shared_ptr<PendingCollective> pending;
  {
    const std::lock_guard lock(mutex_);
    auto [one, last] = next(message, tensor);
    *last = {one, true};
    pending = std::move(one);
  }
  pending->run(pending);
  return pending;
}

}  // namespace horon::torch_detail
