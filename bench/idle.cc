#include "horon/bench/idle.h"

#include <chrono>
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

std::vector<double> measure_idle_percent(MpiPeer& mpi, double seconds) {
  mpi.barrier();
  // The work that follows the last collective is not measured.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const auto begin = std::chrono::steady_clock::now();
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const double used = cpu_seconds() - before;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  return mpi.gather(100 * used / passed.count());
}

}  // namespace horon::bench
