#include "horon/core/base/timeline.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/json.h"
#include "horon/core/base/log.h"
#include "horon/core/base/replace_file.h"
#include "horon/core/base/text.h"

namespace horon::core {
namespace {

constexpr size_t kBufferedEventsMax = 4096;
constexpr std::string_view kFooter = "\n]}\n";

std::string file_of_rank(const std::string& path, int rank) {
  constexpr std::string_view placeholder = "{rank}";
  const size_t at = path.find(placeholder);
  if (at != std::string::npos) {
    return concat(path.substr(0, at), rank, path.substr(at + placeholder.size()));
  }
  std::error_code ignored;
  if (path.ends_with('/') || std::filesystem::is_directory(path, ignored)) {
    return concat(path, path.ends_with('/') ? "" : "/", "timeline.rank", rank, ".json");
  }
  constexpr std::string_view suffix = ".json";
  const std::string stem =
      path.ends_with(suffix) ? path.substr(0, path.size() - suffix.size()) : path;
  return concat(stem, ".rank", rank, ".json");
}

// A file that is valid JSON after each call: the next events overwrite the footer.
class TraceFile {
 public:
  TraceFile(const std::string& path, std::string_view head) : path_(path) {
    // An older file of this name is replaced only when the new one has its head and footer.
    std::string temporary;
    try {
      temporary = make_file_beside(path);
      file_ = ::open(temporary.c_str(), O_WRONLY | O_CLOEXEC);
      if (file_ < 0 || !append(head) || std::rename(temporary.c_str(), path.c_str()) != 0) {
        throw Error(ErrorCode::OperationFailed, std::strerror(errno));
      }
    } catch (...) {
      if (!temporary.empty()) std::remove(temporary.c_str());
      close();
      throw Error(ErrorCode::Config, concat("HORON_TIMELINE or start_timeline(): can't write ",
                                            path, ": ", current_error().what()));
    }
  }
  ~TraceFile() { close(); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // False: nothing was added, for the reason in errno.
  bool append(std::string_view text) {
    if (write(std::string(text).append(kFooter))) {
      end_ += static_cast<off_t>(text.size());
      return true;
    }
    const int error = errno;
    // The disk may be full, but the old footer's place is still there.
    if (write(kFooter)) {
      [[maybe_unused]] const int cut =
          ::ftruncate(file_, end_ + static_cast<off_t>(kFooter.size()));
    }
    errno = error;
    return false;
  }

  const std::string& path() const { return path_; }

 private:
  // Overwrites from the footer on.
  bool write(std::string_view text) const {
    for (size_t done = 0; done < text.size();) {
      const ssize_t count =
          ::pwrite(file_, text.data() + done, text.size() - done, end_ + static_cast<off_t>(done));
      if (count < 0 && errno != EINTR) return false;
      if (count > 0) done += static_cast<size_t>(count);
    }
    return true;
  }
  void close() const {
    if (file_ >= 0) ::close(file_);
  }

  const std::string path_;
  int file_ = -1;
  off_t end_ = 0;  // where the footer begins
};

std::string microseconds(std::chrono::nanoseconds time) {
  std::array<char, 32> out{};
  const int64_t ns = time.count();
  const int length =
      std::snprintf(out.data(), out.size(), "%lld.%03lld", static_cast<long long>(ns / 1000),
                    static_cast<long long>(ns % 1000));
  return {out.data(), static_cast<size_t>(length)};
}

std::string event_head(char phase, int rank) {
  return concat(R"({"ph":")", phase, R"(","pid":)", rank);
}

std::string metadata(int rank, int track, std::string_view what, const std::string& arguments) {
  return concat(event_head('M', rank), R"(,"tid":)", track, R"(,"name":")", what, R"(","args":{)",
                arguments, "}}");
}

std::string head(int rank, int size) {
  return concat(R"({"displayTimeUnit":"ms","traceEvents":[)", "\n",
                metadata(rank, 0, "process_name", concat(R"("name":"rank )", rank, '"')), ",\n",
                metadata(rank, 0, "process_labels", concat(R"("labels":"of )", size, '"')), ",\n",
                metadata(rank, 0, "process_sort_index", concat(R"("sort_index":)", rank)));
}

class FileTimeline final : public Timeline {
 public:
  FileTimeline(const std::string& path, int rank, int size, int64_t events_max)
      : rank_(rank), events_max_(events_max), file_(path, head(rank, size)) {
    buffer_.reserve(kBufferedEventsMax);
    // One offset for the whole run, because the wall clock may be set while the program runs.
    to_wall_ =
        std::chrono::system_clock::now().time_since_epoch() - Clock::now().time_since_epoch();
  }
  ~FileTimeline() override { flush(); }

  void span(std::string_view track, std::string_view name, Clock::time_point begin,
            Clock::time_point end, std::string_view detail) override {
    record([&] {
      return Event{track_number(track), begin, end, std::string(name), std::string(detail), {}};
    });
  }

  void counter(std::string_view name, Clock::time_point at, uint64_t value) override {
    record([&] { return Event{0, at, at, std::string(name), {}, value}; });
  }

  void flush() override {
    const std::lock_guard file_lock(file_mutex_);
    std::vector<Event> events;
    events.reserve(kBufferedEventsMax);
    std::vector<std::string> new_tracks;
    {
      const std::lock_guard lock(buffer_mutex_);
      events.swap(buffer_);
      new_tracks.swap(new_tracks_);
    }
    if (events.empty()) return;
    std::string text;
    for (const std::string& track : new_tracks) {
      text += concat(",\n", metadata(rank_, ++named_tracks_, "thread_name",
                                     concat(R"("name":)", json_string(track))));
    }
    for (const Event& event : events) append_event(text, event);
    if (file_.append(text)) return;
    const std::string why = std::strerror(errno);
    const std::lock_guard lock(buffer_mutex_);
    if (!stopped_)
      stop(concat("can't write ", file_.path(), ": ", why, "; the timeline stops here"));
  }

 private:
  struct Event {
    int track;
    Clock::time_point begin;
    Clock::time_point end;
    std::string name;
    std::string detail;
    std::optional<uint64_t> value;  // of a counter; else the event is a bar
  };

  // `make`: the event; called with buffer_mutex_ held.
  template <class Make>
  void record(const Make& make) {
    bool full = false;
    {
      const std::lock_guard lock(buffer_mutex_);
      if (stopped_) return;
      if (events_ == events_max_) {
        stop(concat("the timeline has ", events_max_, " events; recording stops here"));
        return;
      }
      ++events_;
      buffer_.push_back(make());
      full = buffer_.size() >= kBufferedEventsMax;
    }
    if (full) flush();
  }

  void append_event(std::string& text, const Event& event) const {
    if (event.value) {
      text += concat(",\n", event_head('C', rank_), R"(,"ts":)",
                     microseconds(event.begin.time_since_epoch() + to_wall_), R"(,"name":)",
                     json_string(event.name), R"(,"args":{"value":)", *event.value, "}}");
      return;
    }
    text += concat(",\n", event_head('X', rank_), R"(,"tid":)", event.track, R"(,"ts":)",
                   microseconds(event.begin.time_since_epoch() + to_wall_), R"(,"dur":)",
                   microseconds(std::max(event.end - event.begin, Clock::duration(0))),
                   R"(,"name":)", json_string(event.name));
    if (!event.detail.empty())
      text += concat(R"(,"args":{"detail":)", json_string(event.detail), '}');
    text += '}';
  }

  // The caller of these two holds buffer_mutex_.
  int track_number(std::string_view track) {
    if (const auto found = tracks_.find(track); found != tracks_.end()) return found->second;
    const int number = static_cast<int>(tracks_.size()) + 1;
    tracks_.emplace(track, number);
    new_tracks_.emplace_back(track);
    return number;
  }
  void stop(const std::string& why) {
    stopped_ = true;
    log(LogLevel::Warn, why);
  }

  const int rank_;
  const int64_t events_max_;
  std::chrono::nanoseconds to_wall_{0};

  std::mutex file_mutex_;  // taken before buffer_mutex_
  TraceFile file_;
  int named_tracks_ = 0;

  std::mutex buffer_mutex_;
  std::vector<Event> buffer_;
  std::map<std::string, int, std::less<>> tracks_;
  std::vector<std::string> new_tracks_;
  int64_t events_ = 0;
  bool stopped_ = false;
};

}  // namespace

std::shared_ptr<Timeline> Timeline::open(const std::string& path, int rank, int size,
                                         int64_t events_max) {
  return std::make_shared<FileTimeline>(file_of_rank(path, rank), rank, size, events_max);
}

TimelineSwitch::TimelineSwitch(int rank, int size, std::unique_ptr<LiveRanges> profiler)
    : rank_(rank), size_(size), profiler_(std::move(profiler)) {
  records_ = false;
}

void TimelineSwitch::start(const std::string& path) { change_to(open(path, rank_, size_)); }

void TimelineSwitch::stop() { change_to(nullptr); }

void TimelineSwitch::span(std::string_view track, std::string_view name, Clock::time_point begin,
                          Clock::time_point end, std::string_view detail) {
  if (const auto to = file()) to->span(track, name, begin, end, detail);
}

void TimelineSwitch::counter(std::string_view name, Clock::time_point at, uint64_t value) {
  if (const auto to = file()) to->counter(name, at, value);
}

void TimelineSwitch::flush() {
  if (const auto to = file()) to->flush();
}

std::shared_ptr<Timeline> TimelineSwitch::file() const {
  const std::lock_guard lock(mutex_);
  return file_;
}

void TimelineSwitch::change_to(std::shared_ptr<Timeline> file) {
  {
    const std::lock_guard lock(mutex_);
    file_.swap(file);
    if (file_ != nullptr) ++files_;
    records_ = file_ != nullptr;
  }
  while (file.use_count() > 1) std::this_thread::yield();  // other threads record their last event
}

}  // namespace horon::core
