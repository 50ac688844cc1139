#include "horon/bench/idle.h"

#include <chrono>
#include <numeric>
#include <sys/resource.h>
#include <thread>

#include "horon/bench/statistics.h"

namespace horon::bench {
namespace {

double cpu_seconds() {
  rusage usage{};
  (void)getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

IdlePercents measure_idle_percents(MpiPeer& mpi, double seconds) {
  mpi.barrier();
  // The work that follows the last collective is not measured.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  std::vector<double> parts(10);
  const auto count = static_cast<double>(parts.size());
  for (double& part : parts) {
    const auto begin = std::chrono::steady_clock::now();
    const double before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds / count));
    const double used = cpu_seconds() - before;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    part = 100 * used / passed.count();
  }
  const double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
  return {mpi.gather(sum / count), mpi.gather(median(parts))};
}

}  // namespace horon::bench
