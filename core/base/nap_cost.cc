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

NapCost::Usage usage_of_others(int64_t now_ns) noexcept {
  rusage all{};
  getrusage(RUSAGE_SELF, &all);
  rusage mine{};
  getrusage(RUSAGE_THREAD, &mine);
  return {now_ns, read_ns(CLOCK_PROCESS_CPUTIME_ID) - read_ns(CLOCK_THREAD_CPUTIME_ID),
          all.ru_nivcsw - mine.ru_nivcsw};
}

}  // namespace

void NapCost::note_nap(int64_t now_ns) noexcept {
  if (now_ns - last_nap_ns_ > kLongAgoNs) forget();
  last_nap_ns_ = now_ns;
  const bool has_begun = naps_ > kOneSeen;
  if (++naps_ < (has_begun ? kNaps : 0)) return;
  const Usage usage = usage_of_others(now_ns);
  if (has_begun) end(usage);
  begin(usage);
  naps_ = 0;
}

// It changes its mind only where it is sure.
void NapCost::end(const Usage& usage) noexcept {
  const int64_t passed = usage.now_ns - begin_.now_ns;
  const int64_t computed = usage.cpu_ns - begin_.cpu_ns;
  const int64_t lost = usage.lost_cores - begin_.lost_cores;
  dear_ = dear_ ? 4 * computed >= passed && 4 * lost >= kNaps
                : 2 * computed >= passed && 2 * lost >= kNaps;
}

}  // namespace horon::core
