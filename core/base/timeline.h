// A recorder of events in Chrome's trace format (chrome://tracing, ui.perfetto.dev).
//
// Rank N writes FILE.rankN.json, whether FILE or FILE.json is given, and timeline.rankN.json where
// that is a folder; if the name holds "{rank}", the rank replaces it. Events are buffered; flush(),
// the destructor and a full buffer write them, and after each write the file is valid JSON. Times
// are microseconds since 1970, so files of several ranks can be viewed together. The runtime
// records its statistics (statistics.h) as counters: once a second those that have changed, and at
// the end. After kEventsMax events recording stops, with one warning in the log.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "horon/core/base/live_ranges.h"

namespace horon::core {

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kEventsMax = 4'000'000;  // about 600 MB

  // Throws Error(Config) if the file can't be written.
  static std::shared_ptr<Timeline> open(const std::string& path, int rank, int size,
                                        int64_t events_max = kEventsMax);
  virtual ~Timeline() = default;

  // Whether events are recorded now. Callers ask first, to save reading a clock.
  bool records() const { return records_.load(std::memory_order_relaxed); }
  // Records one bar on a track ("training", "collective"). Any thread; a few hundred nanoseconds.
  virtual void span(std::string_view track, std::string_view name, Clock::time_point begin,
                    Clock::time_point end, std::string_view detail = {}) = 0;
  // Records the value of a number from now on; it is drawn as a curve over time. Any thread.
  virtual void counter(std::string_view name, Clock::time_point at, uint64_t value) = 0;
  virtual void flush() = 0;
  // The number of the file that is being written, counted over all files of this timeline.
  virtual uint64_t file_number() const { return 1; }
  // Of a profiler that is attached, which draws the same bars; null if there is none.
  virtual LiveRanges* profiler() const { return nullptr; }

 protected:
  std::atomic<bool> records_{true};
};

inline bool records(const std::shared_ptr<Timeline>& timeline) {
  return timeline != nullptr && timeline->records();
}
inline LiveRanges* profiler_of(const std::shared_ptr<Timeline>& timeline) {
  return timeline != nullptr ? timeline->profiler() : nullptr;
}

// The timeline of a job: records into a file that is chosen, changed and closed while the job runs,
// and nothing before and after.
class TimelineSwitch final : public Timeline {
 public:
  // `profiler`: may be null.
  TimelineSwitch(int rank, int size, std::unique_ptr<LiveRanges> profiler = nullptr);

  // Ends the current file, if there is one. Any thread. Throws Error(Config) if the new file can't
  // be written; then the current one goes on.
  void start(const std::string& path);
  // The file is complete when this returns. Any thread.
  void stop();

  void span(std::string_view track, std::string_view name, Clock::time_point begin,
            Clock::time_point end, std::string_view detail = {}) override;
  void counter(std::string_view name, Clock::time_point at, uint64_t value) override;
  void flush() override;
  uint64_t file_number() const override { return files_.load(std::memory_order_relaxed); }
  LiveRanges* profiler() const override { return profiler_.get(); }

 private:
  std::shared_ptr<Timeline> file() const;
  void change_to(std::shared_ptr<Timeline> file);

  const int rank_;
  const int size_;
  const std::unique_ptr<LiveRanges> profiler_;
  mutable std::mutex mutex_;
  std::shared_ptr<Timeline> file_;  // null: nothing is recorded
  std::atomic<uint64_t> files_{0};
};

}  // namespace horon::core
