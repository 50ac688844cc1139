// The names of this rank's calls that have not ended, so that a call learns at once that its name
// is taken. The negotiation finds that out as well, but can tell only who waits for the second
// call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "horon/core/runtime/handle.h"

namespace horon::torch_detail {

// Any thread. Two threads that begin calls of one name at the same time may both pass; then the
// error is that of a handle.
class NamesInFlight {
 public:
  // Throws Error(DuplicateName).
  void refuse_duplicate(uint32_t set, const std::string& name) const;
  void note(uint32_t set, const std::string& name, const std::shared_ptr<core::HandleState>& call);

 private:
  static constexpr size_t kSweepMin = 1024;

  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<core::HandleState>> calls_;
  size_t next_sweep_ = kSweepMin;  // entries at which those of calls that have ended are removed
};

// Of this process.
NamesInFlight& names_in_flight();

}  // namespace horon::torch_detail
