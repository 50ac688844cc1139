// A recorder of what happened when, in Chrome's trace format (chrome://tracing, ui.perfetto.dev).
//
// Each rank writes FILE.rankN.json, for FILE and for FILE.json ("{rank}" in the name is replaced
// instead, if it is there). Events are buffered and written by flush(), by the destructor and
// whenever the buffer is full; the file is valid JSON after each flush. Times are microseconds
// since 1970, so files of several ranks can be laid side by side. After some million events
// recording stops, with one warning in the log.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace horon::core {

class Timeline {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kEventsMax = 4'000'000;  // about 600 MB

  // Throws Error(Config) if the file can't be written.
  static std::shared_ptr<Timeline> open(const std::string& path, int rank, int size,
                                        int64_t events_max = kEventsMax);
  virtual ~Timeline() = default;

  // One bar on a track ("backward", "allreduce", "wait"). Any thread; a few hundred nanoseconds.
  virtual void span(std::string_view track, std::string_view name, Clock::time_point begin,
                    Clock::time_point end, std::string_view detail = {}) = 0;
  virtual void flush() = 0;
};

}  // namespace horon::core
