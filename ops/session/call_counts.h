// Counts calls and objects without a name; the count becomes part of the name. Also keeps the
// join() and the barrier() whose wait was interrupted, without which the counts would not hold.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

namespace horon::core {
class HandleState;
struct Outcome;
}  // namespace horon::core

namespace horon::ops {

// Every rank counts its own calls, so the ranks of a process set agree as long as they make the
// same calls. Once some ranks have joined they do not, so all forget their counts when a join()
// ends. There is one object for each session. Any thread.
//
// A join() or barrier() whose wait an exception has ended (core/base/wait_check.h) goes on: the
// next call of it on this rank is that one again. After such a join() the counts do not hold, so
// until then next(), next_object(), next_called_object() and times_forgotten() throw
// Error(InvalidArgument).
class CallCounts {
 public:
  // The count begins again after so many calls, so no more of a kind may be under way at once. The
  // ranks know these names already: a program that runs for weeks does not fill the table of names.
  static constexpr uint64_t kNumbers = 1024;

  // The same for blocking calls: each thread has one under way, and if there are more threads they
  // take turns. A loop of such calls has few names, which soon start without negotiation (at most
  // core::Gate::kCounters of all names do).
  static constexpr uint64_t kNumbersOfBlocking = 16;

  // 0 for the first call of this kind on this process set, then 1, 2 ... numbers - 1, 0 ...
  uint64_t next(std::string_view kind, uint32_t set, uint64_t numbers = kNumbers);
  // The same for objects of this kind, whose names are in use after a join() too: these counts are
  // not forgotten and do not begin again.
  uint64_t next_object(std::string_view kind, uint32_t set);
  // The same for objects that are counted at their first call, which ranks that have joined do not
  // make. Until keep_objects() the number holds only until the next join() ends: then the count
  // goes back, and the object must get a new number.
  uint64_t next_called_object(std::string_view kind, uint32_t set);
  // All ranks of the set have taken part in a call of the object with the last number.
  void keep_objects(std::string_view kind, uint32_t set);
  // A join() on this process set has ended: no call from before is under way on any of its ranks.
  void forget(uint32_t set);
  // The set has been removed, or this rank has left it: nobody calls or makes anything there any
  // more. Objects that outlive the set still see the same times_forgotten().
  void drop(uint32_t set);
  // How often forget() has been called for this set, for callers that keep their own counts.
  uint64_t times_forgotten(uint32_t set);

  // The call of this name on this set that must be waited for again. Null: there is none.
  std::shared_ptr<core::HandleState> take_interrupted(std::string_view call, uint32_t set);
  // HandleState::get(). Keeps the call for take_interrupted() if an exception ends the wait.
  const core::Outcome& get_or_keep(std::string_view call, uint32_t set,
                                   const std::shared_ptr<core::HandleState>& handle);

 private:
  struct Objects {
    uint64_t next = 0;
    uint64_t kept = 0;  // on all ranks: what the count goes back to when a join() ends
  };
  template <class Count>
  using OfKind = std::map<std::pair<uint32_t, std::string>, Count>;

  // Under the lock.
  void refuse_before_end_of_join(uint32_t set) const;

  std::mutex mutex_;
  OfKind<uint64_t> counts_;
  OfKind<Objects> objects_;
  std::map<uint32_t, uint64_t> forgotten_;
  OfKind<std::shared_ptr<core::HandleState>> interrupted_;
};

}  // namespace horon::ops
