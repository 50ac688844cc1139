// What rank 0 does alone.
//
//   horon::print0("epoch ", epoch, "  loss ", mean);      // one line, of rank 0
//   horon::rank_zero_only([&] { write_report(path); });   // the others go on at once
//   if (const horon::RankZeroScope zero; zero) {          // the same for a block
//     write_report(path);
//   }
//
// With a process set it is the lowest rank of the set that does it; ranks that are not in the set
// do nothing:
//
//   horon::print0(set, "loss of these ranks ", mean);
//   horon::rank_zero_only([&] { write_report(path); }, set);
//
// A collective in there would wait for ranks that never come. Instead it throws
// Error(InvalidArgument) at once, on this rank, and nothing of it is counted or sent: the session
// goes on. That holds for collectives of any kind, barrier(), join() and process sets, begun by the
// thread of the scope; wait() for what was begun before works. Local, any thread, also without a
// session, where the process counts as rank 0. The other ranks, which have gone on, wait for this
// one in their next collective; if that takes long, they report it as a stall (HORON_STALL_WARN_S).
#pragma once

#include <sstream>
#include <string>
#include <utility>

#include "horon/ops/session/process_set.h"

namespace horon {

// Whether this is rank 0 in the session that runs or ran last; true before the first one. With a
// process set: whether this is its lowest rank.
bool is_rank_zero(const ProcessSet& process_set = {});

// While it lives, this thread begins no collectives, on whatever rank. Nests; ends on the thread
// that made it, in the reverse order.
class RankZeroScope {
 public:
  explicit RankZeroScope(const ProcessSet& process_set = {});
  ~RankZeroScope();
  RankZeroScope(const RankZeroScope&) = delete;
  RankZeroScope& operator=(const RankZeroScope&) = delete;

  // Is this rank 0 (the lowest rank of the set)?
  explicit operator bool() const { return rank_zero_; }

 private:
  const bool rank_zero_;
  const char* const before_;
};

// Runs `work` on rank 0 (the lowest rank of the set), in a scope. What it throws is thrown there
// alone; on_all_ranks() (rank_agreement.h) is for work whose failure all ranks must know.
template <class Work>
void rank_zero_only(const Work& work, const ProcessSet& process_set = {}) {
  const RankZeroScope scope(process_set);
  if (scope) work();
}

namespace torch_detail {
void print_line(std::string line);
}

// The arguments one after the other, as std::ostream writes them, and a newline: to standard output
// in one piece, at once. With a process set, given first, its lowest rank prints.
template <class... Args>
void print0(const ProcessSet& process_set, const Args&... args) {
  if (!is_rank_zero(process_set)) return;
  std::ostringstream out;
  ((out << args), ...);
  torch_detail::print_line(std::move(out).str());
}
template <class... Args>
void print0(const Args&... args) {
  print0(ProcessSet(), args...);
}

}  // namespace horon
