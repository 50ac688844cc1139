// What rank 0 does alone.
//
//   horon::print0("epoch ", epoch, "  loss ", mean);      // one line, of rank 0
//   horon::rank_zero_only([&] { write_report(path); });   // the others go on at once
//   if (const horon::RankZeroScope zero; zero) {          // the same for a block
//     write_report(path);
//   }
//
// A collective in there would wait for ranks that never come. Instead it throws
// Error(InvalidArgument) at once, on this rank, and nothing of it is counted or sent: the session
// goes on. That holds for collectives of any kind, barrier(), join() and process sets, begun by the
// thread of the scope; wait() for what was begun before works. Local, any thread, also without a
// session, where the process counts as rank 0.
#pragma once

#include <sstream>
#include <string>
#include <utility>

namespace horon {

// Of all ranks, in the session that runs or ran last; true before the first one.
bool is_rank_zero();

// While it lives, this thread begins no collectives, on whatever rank. Nests; ends on the thread
// that made it, in the reverse order.
class RankZeroScope {
 public:
  RankZeroScope();
  ~RankZeroScope();
  RankZeroScope(const RankZeroScope&) = delete;
  RankZeroScope& operator=(const RankZeroScope&) = delete;

  // Is this rank 0?
  explicit operator bool() const { return rank_zero_; }

 private:
  const bool rank_zero_;
  const char* const before_;
};

// Runs `work` on rank 0, in a scope. What it throws is thrown there alone; on_all_ranks()
// (rank_agreement.h) is for work whose failure all ranks must know.
template <class Work>
void rank_zero_only(const Work& work) {
  const RankZeroScope scope;
  if (scope) work();
}

namespace torch_detail {
void print_line(std::string line);
}

// The arguments one after the other, as std::ostream writes them, and a newline: to standard output
// in one piece, at once.
template <class... Args>
void print0(const Args&... args) {
  if (!is_rank_zero()) return;
  std::ostringstream out;
  ((out << args), ...);
  torch_detail::print_line(std::move(out).str());
}

}  // namespace horon
