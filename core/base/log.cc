#include "horon/core/base/log.h"

#include <array>
#include <atomic>
#include <unistd.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::core {
namespace {

constexpr int kNoRank = -1;
std::atomic<int> own_rank{kNoRank};
std::atomic<LogLevel> log_level{LogLevel::Info};

constexpr std::array<std::string_view, 4> kLevelNames = {"error", "warn", "info", "debug"};
constexpr std::array<std::string_view, 4> kLabels = {"error", "warning", "info", "debug"};

}  // namespace

void set_log(int rank, LogLevel level) {
  own_rank.store(rank, std::memory_order_relaxed);
  log_level.store(level, std::memory_order_relaxed);
}

int log_rank() { return own_rank.load(std::memory_order_relaxed); }

LogLevel parse_log_level(const std::string& text) {
  for (size_t i = 0; i < kLevelNames.size(); ++i) {
    if (text == kLevelNames.at(i)) return static_cast<LogLevel>(i);
  }
  throw Error(ErrorCode::Config,
              concat("'", text, "' is not a log level: give error, warn, info or debug"));
}

bool log_enabled(LogLevel level) { return level <= log_level.load(std::memory_order_relaxed); }

void log(LogLevel level, std::string_view line) {
  if (!log_enabled(level)) return;
  const int rank = own_rank.load(std::memory_order_relaxed);
  std::string text = rank == kNoRank ? std::string("horon ") : concat("horon [", rank, "] ");
  text.append(kLabels.at(static_cast<size_t>(level))).append(": ").append(line).append("\n");
  // A single call keeps the lines of several threads and ranks whole. A failure is ignored: there
  // is no other place to report it.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace horon::core
