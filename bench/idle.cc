#include "horon/bench/idle.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <sys/resource.h>
#include <thread>

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
  std::array<double, 10> parts{};
  for (double& part : parts) {
    const auto begin = std::chrono::steady_clock::now();
    const double before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds / parts.size()));
    const double used = cpu_seconds() - before;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    part = 100 * used / passed.count();
  }
  const double mean = std::accumulate(parts.begin(), parts.end(), 0.0) / parts.size();
  std::ranges::nth_element(parts, parts.begin() + parts.size() / 2);
  return {mpi.gather(mean), mpi.gather(parts[parts.size() / 2])};
}

}  // namespace horon::bench
