// Ranges that a profiler draws while they last. A timeline takes bars once they have ended; some
// profilers, such as Nsight Systems, must be told when a range begins and when it ends.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "horon/core/base/text.h"

namespace horon::core {

// A profiler that is attached to this process. Any thread calls it.
class LiveRanges {
 public:
  virtual ~LiveRanges() = default;
  // Begins a range of this name now; gives its number. A range may end on another thread.
  virtual uint64_t begin(const std::string& name) = 0;
  // Call it once for each number.
  virtual void end(uint64_t range) noexcept = 0;
};

// A range from its making to its end(), or to the end of this object.
class LiveRange {
 public:
  LiveRange() = default;  // none
  // Named "`what` `name`". `profiler`: may be null, and then nothing is drawn; it must live longer.
  LiveRange(LiveRanges* profiler, std::string_view what, std::string_view name)
      : profiler_(profiler) {
    if (profiler_ != nullptr) number_ = profiler_->begin(concat(what, " ", name));
  }
  ~LiveRange() { end(); }
  LiveRange(LiveRange&& other) noexcept
      : profiler_(std::exchange(other.profiler_, nullptr)), number_(other.number_) {}
  LiveRange& operator=(LiveRange&& other) noexcept {
    std::swap(profiler_, other.profiler_);
    std::swap(number_, other.number_);
    return *this;
  }

  void end() noexcept {
    if (profiler_ != nullptr) std::exchange(profiler_, nullptr)->end(number_);
  }

 private:
  LiveRanges* profiler_ = nullptr;
  uint64_t number_ = 0;
};

}  // namespace horon::core
