#include "horon/torch_bindings/python/process_group/call_order.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ops/tensor.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/call_counts.h"
#include "horon/ops/session/running_job.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::python::process_group {

CallOrder::CallOrder(const std::string& group, ProcessSet set)
    : set_(std::move(set)),
      begins_(core::concat("c10d.", group, ".")),
      joins_(ops::call_counts().times_forgotten(set_.id())) {}

void CallOrder::start(Operation& operation, const Start& what,
                      const std::function<void(torch_detail::PendingCollective&)>& fill) {
  start_all(operation, what, 1,
            [&](torch_detail::PendingCollective& pending, size_t) { fill(pending); });
}

void CallOrder::start_all(
    Operation& operation, const Start& what, size_t collectives,
    const std::function<void(torch_detail::PendingCollective&, size_t)>& fill) {
  try {
    start_all_in_turn(operation, what, collectives, fill);
  } catch (...) {
    operation.work_if_waited_for();
    throw;
  }
  operation.work_if_waited_for();
}

void CallOrder::start_all_in_turn(
    Operation& operation, const Start& what, size_t collectives,
    const std::function<void(torch_detail::PendingCollective&, size_t)>& fill) {
  const CallLine::Turn turn(line_, operation);
  begin_anew_after_join();
  take_answer(operation, collectives);
  const size_t ahead = std::min(collectives, kLeastNames);
  for (size_t i = 0; i < ahead; ++i) wait_for_name(operation, count() + i);
  std::exception_ptr fault;
  for (size_t i = 0; i < collectives; ++i) {
    if (i > 0) {  // the answer and the name may be of this operation's own calls
      take_answer(operation, 1);
      wait_for_name(operation, count());
    }
    try {
      start_next(operation, what, collectives == 1,
                 [&](torch_detail::PendingCollective& pending) { fill(pending, i); });
    } catch (const Error&) {
      if (fault == nullptr) fault = std::current_exception();
    }
    ask_for_number();
  }
  if (fault != nullptr) std::rethrow_exception(fault);
}

// After a join() no earlier call is in flight on any rank.
void CallOrder::begin_anew_after_join() {
  const uint64_t joins = ops::call_counts().times_forgotten(set_.id());
  if (std::exchange(joins_, joins) == joins) return;
  count_ = 0;
  now_ = next_ = {};
  cycle_ = {};
  next_look_ = kFirstLook;
  question_.reset();
}

CallOrder::Name& CallOrder::name_of(uint64_t call) {
  const Turns& turns = turns_at(call);
  const size_t index = (call - turns.first) % turns.number;
  for (size_t i = names_.size(); i <= index; ++i) names_.push_back({core::concat(begins_, i), {}});
  return names_[index];
}

void CallOrder::wait_for_name(const Operation& operation, uint64_t call) {
  // If it is gone, the runtime has let go of it, so it has ended.
  const Pending last = name_of(call).last.lock();
  if (last != nullptr && !last->state().finished()) operation.wait_for_earlier(*last);
}

void CallOrder::start_next(Operation& operation, const Start& what, bool alone,
                           const std::function<void(torch_detail::PendingCollective&)>& fill) {
  Name& name = name_of(count_++);
  auto pending = std::make_shared<torch_detail::PendingCollective>(what.kind, to_string(what.kind),
                                                                   name.text, set_, what.grouped);
  pending->results_are_copied = true;  // into the tensors that torch.distributed gives
  pending->shapes_may_differ = true;
  try {
    fill(*pending);
  } catch (const Error&) {  // the other ranks know of it
    throw;
  } catch (...) {  // LibTorch's own errors
    pending->refuse(core::current_error());
  }
  cycle_.note(pending->likeness());
  operation.begin(pending, alone);
  name.last = pending;
}

// A number counts only if all ranks want it: ranks whose latest calls differ keep the present
// number until they agree again.
void CallOrder::take_answer(const Operation& operation, size_t collectives) {
  if (!question_ || count() + collectives <= question_->from) return;
  if (!question_->answer->state().finished()) operation.wait_for_earlier(*question_->answer);
  const Question asked = *std::exchange(question_, std::nullopt);
  now_ = next_;
  try {
    const at::Tensor numbers = asked.answer->results().front();
    const auto* const least_and_largest = numbers.const_data_ptr<int64_t>();
    const auto number = static_cast<size_t>(least_and_largest[0]);
    const bool agreed = least_and_largest[0] == -least_and_largest[1];
    if (agreed && number != now_.number) next_ = {number, asked.from};
  } catch (const Error&) {  // it ends the job, as the next call will report
  }
}

// Waits for nobody: a rank may make many calls before another one makes its first. The call that
// waits for the answer would have waited for its name, too.
void CallOrder::ask_for_number() {
  if (count() != next_look_) return;
  const uint64_t from = count() + turns_at(count()).number;
  // The next question comes after this answer has been taken, at the latest by call `from`.
  next_look_ = std::max(from + 1, count() + std::min<uint64_t>(count(), CallCycle::kLongest));
  const torch_detail::PlainMode plain;
  const auto wanted = static_cast<int64_t>(wanted_number());
  auto pending = std::make_shared<torch_detail::PendingCollective>(
      CollectiveKind::Allreduce, to_string(CollectiveKind::Allreduce), begins_ + "names", set_);
  try {
    pending->spec.reduce_op = ReduceOp::Min;
    pending->add(at::tensor({wanted, -wanted}), torch_detail::Into::Same);
    pending->submit_in_turn(pending);
  } catch (const Error&) {  // it has ended the job, as the call beside it will report
    return;
  }
  question_ = Question{std::move(pending), from};
}

// The present number stays while it fits: enough calls within one step may be alike to look like a
// shorter cycle.
size_t CallOrder::wanted_number() const {
  const size_t number = turns_at(count()).number;
  if (cycle_.repeats_after(number)) return number;
  const size_t length = cycle_.length();
  return length == 0 ? number : (kLeastNames + length - 1) / length * length;
}

}  // namespace horon::python::process_group
