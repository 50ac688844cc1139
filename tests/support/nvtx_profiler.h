// A profiler that records what Horon tells it by NVTX. A program that links this file is profiled
// from its start, by NVTX's static injection.
#pragma once

#include <mutex>
#include <string>
#include <vector>

namespace horon::test {

class NvtxProfiler {
 public:
  struct Range {
    std::string name;
    int begun_at = 0;  // times are places in the order of all begins and ends
    int ended_at = 0;  // 0: not yet
  };

  // So far, in the order in which they have begun. Any thread.
  std::vector<Range> ranges_named(const std::string& name);
  std::vector<std::string> domains();

  // For the functions that NVTX calls.
  void add_domain(const char* name);
  size_t begin(const char* name);
  void end(size_t range);

 private:
  std::mutex mutex_;
  std::vector<std::string> domains_;
  std::vector<Range> ranges_;
  int last_time_ = 0;
};

// That of this process.
NvtxProfiler& nvtx_profiler();

}  // namespace horon::test
