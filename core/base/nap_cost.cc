#include "horon/core/base/nap_cost.h"

#include <sys/resource.h>
#include <time.h>

namespace horon::core {
namespace {

int64_t read_ns(clockid_t clock) noexcept {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

}  // namespace

NapCost::Usage NapCost::usage_of_others() noexcept {
  rusage all{};
  getrusage(RUSAGE_SELF, &all);
  rusage mine{};
  getrusage(RUSAGE_THREAD, &mine);
  return {read_ns(CLOCK_PROCESS_CPUTIME_ID) - read_ns(CLOCK_THREAD_CPUTIME_ID),
          all.ru_nivcsw - mine.ru_nivcsw};
}

void NapCost::note_nap(int64_t now_ns) noexcept {
  if (now_ns - last_nap_ns_ > kLongAgoNs) interrupt();
  last_nap_ns_ = now_ns;
  dear_ = is_dear(now_ns);
  const bool has_begun = naps_ >= 0;
  ++naps_;
  // Dear naps are long, so asking costs little beside one.
  const bool is_due = has_begun ? naps_ >= (dear_ ? kNapsIfDear : kNaps) : dear_ || naps_ == 0;
  if (!is_due) return;
  const Usage usage = usage_();
  if (has_begun) judge(usage, now_ns);
  begin_ = usage;
  begin_ns_ = now_ns;
  naps_ = 0;
}

// Changes the verdict only on clear evidence.
void NapCost::judge(const Usage& usage, int64_t now_ns) noexcept {
  const int64_t passed = now_ns - begin_ns_;
  const int64_t computed = usage.cpu_ns - begin_.cpu_ns;
  const int64_t lost = usage.lost_cores - begin_.lost_cores;
  const int sure = dear_ ? 4 : 2;
  dear_ = sure * computed >= passed && sure * lost >= naps_;
  if (dear_) dear_since_ns_ = now_ns;
}

}  // namespace horon::core
