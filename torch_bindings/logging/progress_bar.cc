#include "horon/torch_bindings/logging/progress_bar.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

#include "horon/core/base/text.h"
#include "horon/torch_bindings/guards/rank_zero.h"

namespace horon {
namespace {

using core::concat;

constexpr int64_t kBarCells = 20;

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int columns_of(std::FILE* out) {
  constexpr int kUsual = 80;
  winsize size{};
  return ::ioctl(::fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  std::array<char, 48> text{};
  if (whole >= 3600) {
    std::snprintf(text.data(), text.size(), "%lld:%02lld:%02lld",
                  static_cast<long long>(whole / 3600), static_cast<long long>(whole / 60 % 60),
                  static_cast<long long>(whole % 60));
  } else {
    std::snprintf(text.data(), text.size(), "%lld:%02lld", static_cast<long long>(whole / 60),
                  static_cast<long long>(whole % 60));
  }
  return text.data();
}

std::string rate_text(double rate) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g/s", rate);
  return text.data();
}

std::string bar_text(int64_t done, int64_t total) {
  const int64_t full = done * kBarCells / total;
  std::string cells(static_cast<size_t>(full), '=');
  if (full < kBarCells) cells += '>';
  cells.resize(kBarCells, ' ');
  return concat(done * 100 / total, " % [", cells, "] ");
}

// The first `count` bytes, or fewer where a letter of several bytes would be cut.
std::string first_bytes(std::string line, size_t count) {
  if (line.size() <= count) return line;
  while (count > 0 && (static_cast<unsigned char>(line[count]) & 0xc0) == 0x80) --count;
  line.resize(count);
  return line;
}

}  // namespace

ProgressBar::ProgressBar(ProgressBarOptions options)
    : options_(std::move(options)), active_(is_rank_zero()) {
  if (!options_.clock) options_.clock = steady_seconds;
  if (!active_) return;
  terminal_ = options_.terminal.value_or(::isatty(::fileno(options_.out)) == 1);
  if (options_.columns == 0) options_.columns = columns_of(options_.out);
  done_ = options_.initial;
  start_ = options_.clock();
  // A terminal shows the bar at once, a file only after its interval.
  next_ = terminal_ ? start_ : start_ + options_.file_interval_s;
}

ProgressBar::~ProgressBar() { finish(); }

std::string ProgressBar::text(double now) const {
  const bool known = options_.total > 0;
  const int64_t done = known ? std::clamp<int64_t>(done_, 0, options_.total) : done_;
  std::string line = options_.label.empty() ? "" : options_.label + "  ";
  if (known) line += bar_text(done, options_.total);
  line += known ? concat(done, "/", options_.total) : concat(done);
  const double seconds = now - start_;
  const int64_t done_since = done - options_.initial;
  if (done_since > 0 && seconds > 0) {
    const double rate = static_cast<double>(done_since) / seconds;
    line += "  " + rate_text(rate);
    const auto left = static_cast<double>(options_.total - done);
    line += known && left > 0 ? concat("  ", duration_text(left / rate), " left")
                              : concat("  ", duration_text(seconds));
  }
  return note_.empty() ? line : concat(line, "  ", note_);
}

void ProgressBar::write(double now) {
  std::string line = text(now);
  if (terminal_) {
    // The last column stays free: some terminals begin a new line behind it.
    line = first_bytes(std::move(line), static_cast<size_t>(std::max(options_.columns - 1, 1)));
    line = "\r" + line + "\x1b[K";
  } else {
    line += '\n';
  }
  std::fwrite(line.data(), 1, line.size(), options_.out);
  std::fflush(options_.out);
  next_ = now + (terminal_ ? options_.terminal_interval_s : options_.file_interval_s);
  shown_ = true;
}

void ProgressBar::update(int64_t done, std::string_view note) {
  if (!active_) return;
  done_ = done;
  note_ = note;
  shown_ = false;
  const double now = options_.clock();
  if (now >= next_) write(now);
}

void ProgressBar::print(std::string_view line) {
  if (!active_) return;
  const std::string above = concat(terminal_ ? "\r\x1b[K" : "", line, "\n");
  std::fwrite(above.data(), 1, above.size(), options_.out);
  if (terminal_) write(options_.clock());
  std::fflush(options_.out);
}

void ProgressBar::finish() {
  if (!active_) return;
  if (!shown_) write(options_.clock());
  if (terminal_) {
    std::fputc('\n', options_.out);
    std::fflush(options_.out);
  }
  active_ = false;
}

}  // namespace horon
