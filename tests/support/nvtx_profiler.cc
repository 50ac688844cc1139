#include "horon/tests/support/nvtx_profiler.h"

#include <algorithm>
#include <iterator>
#include <nvtx3/nvToolsExt.h>

#include <gtest/gtest.h>

namespace horon::test {
namespace {

nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
  nvtx_profiler().add_domain(name);
  return reinterpret_cast<nvtxDomainHandle_t>(&nvtx_profiler());
}

// 0 is no range, so their numbers begin with 1.
nvtxRangeId_t NVTX_API begin_range(nvtxDomainHandle_t /*domain*/,
                                   const nvtxEventAttributes_t* event) {
  return nvtx_profiler().begin(event->message.ascii) + 1;
}

void NVTX_API end_range(nvtxDomainHandle_t /*domain*/, nvtxRangeId_t range) {
  nvtx_profiler().end(range - 1);
}

// NVTX calls it before its own first call, and takes the functions that stand in the table then.
int NVTX_API attach(NvtxGetExportTableFunc_t export_table) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  const auto take = [&](NvtxCallbackIdCore2 call, auto* function) {
    *table[call] = reinterpret_cast<NvtxFunctionPointer>(function);
  };
  take(NVTX_CBID_CORE2_DomainCreateA, &create_domain);
  take(NVTX_CBID_CORE2_DomainRangeStartEx, &begin_range);
  take(NVTX_CBID_CORE2_DomainRangeEnd, &end_range);
  return 1;
}

const bool is_attached = [] {
  InitializeInjectionNvtx2_fnptr = &attach;
  return true;
}();

}  // namespace

NvtxProfiler& nvtx_profiler() {
  static NvtxProfiler one;
  return one;
}

std::vector<NvtxProfiler::Range> NvtxProfiler::ranges_named(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::vector<Range> found;
  std::copy_if(ranges_.begin(), ranges_.end(), std::back_inserter(found),
               [&](const Range& range) { return range.name == name; });
  return found;
}

std::vector<std::string> NvtxProfiler::domains() {
  const std::lock_guard lock(mutex_);
  return domains_;
}

void NvtxProfiler::add_domain(const char* name) {
  const std::lock_guard lock(mutex_);
  domains_.emplace_back(name);
}

size_t NvtxProfiler::begin(const char* name) {
  const std::lock_guard lock(mutex_);
  ranges_.push_back({name, ++last_time_});
  return ranges_.size() - 1;
}

void NvtxProfiler::end(size_t range) {
  const std::lock_guard lock(mutex_);
  EXPECT_EQ(ranges_.at(range).ended_at, 0) << ranges_.at(range).name << " has ended twice";
  ranges_.at(range).ended_at = ++last_time_;
}

}  // namespace horon::test
