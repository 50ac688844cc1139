// The collectives of a process group have no names, only an order, which is the same on all ranks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/python/process_group/call_cycle.h"
#include "horon/torch_bindings/python/process_group/call_line.h"
#include "horon/torch_bindings/python/process_group/operation.h"

namespace horon::python::process_group {

// Each call gets the next of a few names, which come again and again: so the n-th call of one rank
// meets the n-th of the others whatever its kind and shape are, ranks that differ get a Mismatch at
// once, and what repeats starts without negotiation. For that a name must come again with the same
// call: so there are as many names as a step of the program has calls, or a multiple of that. The
// number follows what the program does, and changes when all ranks have found the same. After a
// join() the count begins anew, since ranks that had joined have not made the others' calls. Any
// thread of the program; threads get names in the order of their calls.
class CallOrder {
 public:
  // `group`: what names begin with.
  CallOrder(const std::string& group, ProcessSet set);

  struct Start {
    CollectiveKind kind = CollectiveKind::Allreduce;
    bool grouped = false;  // several tensors, as one
  };
  // Adds a collective to the operation; `fill` adds its tensors and options. Waits while the name's
  // last call is still in flight, until the operation's deadline: then it throws Error(Timeout),
  // and no call has been counted. There are at least 32 names.
  void start(Operation& operation, const Start& what,
             const std::function<void(torch_detail::PendingCollective&)>& fill);
  // The same for an operation of several collectives, with one name each. It waits for their names
  // (of more than 32: for those of the first 32) before the first collective, so that all begin or
  // none: a rank that began some of them would stay out of step. If one is refused, the others
  // begin all the same, and then the first error is thrown.
  void start_all(Operation& operation, const Start& what, size_t collectives,
                 const std::function<void(torch_detail::PendingCollective&, size_t)>& fill);
  // How many calls there have been, since the last join(). Waits for nobody: a message, which asks
  // this too, may be what ends another thread's wait in start().
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  // With more names more calls could be in flight, but each name must be negotiated before it is
  // known.
  static constexpr size_t kLeastNames = 32;
  // The ranks first ask for the number of names after so many calls, then after twice as many each
  // time, and in the end every kLongest calls.
  static constexpr uint64_t kFirstLook = 2 * CallCycle::kLeastRepeated;

  struct Name {
    std::string text;
    std::weak_ptr<torch_detail::PendingCollective> last;  // of its calls
  };
  // From call `first` on the first `number` names come in turn.
  struct Turns {
    size_t number = kLeastNames;
    uint64_t first = 0;
  };
  // The ranks agree on the number of names by a collective beside the calls. The answer holds from
  // call `from` on: a count, so that ranks which differ in their calls by mistake, and are told of
  // it, still meet in the next ones.
  struct Question {
    Pending answer;  // the least number that a rank wants, and the largest one, negative
    uint64_t from = 0;
  };

  void start_all_in_turn(Operation& operation, const Start& what, size_t collectives,
                         const std::function<void(torch_detail::PendingCollective&, size_t)>& fill);
  void begin_anew_after_join();
  void take_answer(const Operation& operation, size_t collectives);
  void ask_for_number();
  size_t wanted_number() const;
  const Turns& turns_at(uint64_t call) const { return call >= next_.first ? next_ : now_; }
  Name& name_of(uint64_t call);
  void wait_for_name(const Operation& operation, uint64_t call);
  void start_next(Operation& operation, const Start& what, bool alone,
                  const std::function<void(torch_detail::PendingCollective&)>& fill);

  const ProcessSet set_;
  const std::string begins_;  // what all names begin with
  CallLine line_;
  std::atomic<uint64_t> count_{0};  // changes in a call's turn, as all below
  std::vector<Name> names_;
  Turns now_;
  Turns next_;
  CallCycle cycle_;
  uint64_t next_look_ = kFirstLook;
  std::optional<Question> question_;
  uint64_t joins_ = 0;
};

}  // namespace horon::python::process_group
