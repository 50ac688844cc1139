#include "horon/torch_bindings/collectives/message_numbers.h"

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::torch_detail {

using core::concat;

bool MessageNumbers::UnderWay::holds() const {
  if (beginning || !until_gone.expired()) return true;
  const std::shared_ptr<core::HandleState> last = handle.lock();  // gone: it has ended
  return last != nullptr && !last->finished();
}

MessageNumbers::Taken MessageNumbers::take(const Message& message) {
  const std::lock_guard lock(mutex_);
  Sequence& sequence = sequence_of(message);
  UnderWay& place = next_place(sequence, message);
  Taken taken{name_of(message, sequence.count), &place};
  place = {.beginning = true, .until_gone = {}};
  ++sequence.count;
  return taken;
}

void MessageNumbers::note(const Taken& taken, UnderWay under_way) {
  const std::lock_guard lock(mutex_);
  *taken.under_way = std::move(under_way);
}

std::pair<std::string, uint64_t> MessageNumbers::next(const Message& message) {
  const std::lock_guard lock(mutex_);
  Sequence& sequence = sequence_of(message);
  (void)next_place(sequence, message);
  return {name_of(message, sequence.count), sequence.count};
}

bool MessageNumbers::take(const Message& message, uint64_t number,
                          const std::shared_ptr<core::HandleState>& handle) {
  const std::lock_guard lock(mutex_);
  Sequence& sequence = sequence_of(message);
  if (sequence.count != number) return false;
  next_place(sequence, message) = {.until_gone = {}, .handle = handle};
  ++sequence.count;
  return true;
}

MessageNumbers::Sequence& MessageNumbers::sequence_of(const Message& message) {
  return sequences_[{message.from, message.to, message.tag, message.of_set}];
}

MessageNumbers::UnderWay& MessageNumbers::next_place(Sequence& sequence,
                                                     const Message& message) const {
  const size_t number = sequence.count % kNumbers;
  if (number == sequence.latest.size()) sequence.latest.emplace_back();
  UnderWay& place = sequence.latest[number];
  if (!place.holds()) return place;
  throw Error(ErrorCode::Limit,
              concat("tensor \"", name_of(message, sequence.count), "\": ", kNumbers,
                     " messages from rank ", message.from, " to rank ", message.to, " with tag ",
                     message.tag, " are in flight, which is the limit; wait for the oldest of ",
                     "them, then call again, or use several tags"));
}

std::string MessageNumbers::name_of(const Message& message, uint64_t count) const {
  return concat(begins_, "send ", message.from, " to ", message.to, ", tag ", message.tag,
                message.of_set.empty() ? "" : ", ", message.of_set, ", number ", count % kNumbers);
}

}  // namespace horon::torch_detail
