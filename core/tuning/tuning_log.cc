#include "horon/core/tuning/tuning_log.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/parse_number.h"
#include "horon/core/base/text.h"

namespace horon::core {
namespace {

// True for the first log of this process with this path.
bool begins(const std::string& path) {
  static std::mutex mutex;
  static std::set<std::string> begun;
  const std::lock_guard lock(mutex);
  return begun.insert(path).second;
}

void write_line(const std::string& path, const char* mode, const std::string& line) {
  std::FILE* const file = std::fopen(path.c_str(), mode);
  bool written = file != nullptr && std::fputs(line.c_str(), file) >= 0;
  int error = errno;
  if (file != nullptr && std::fclose(file) != 0) {
    if (written) error = errno;
    written = false;
  }
  if (written) return;
  throw Error(ErrorCode::Config,
              concat("HORON_AUTOTUNE_LOG: can't write ", path, ": ", std::strerror(error)));
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '"') result += '"';
    result += letter == '\n' ? ' ' : letter;
  }
  return result + '"';
}

// Four decimals are enough for people and for pictures.
std::string rounded(double value) {
  constexpr double parts = 1e4;
  return number_text(std::round(value * parts) / parts);
}

}  // namespace

TuningLog::TuningLog(std::string path, const TuningSettings& settings) : path_(std::move(path)) {
  if (!begins(path_)) return;
  std::string line = "reducer,elapsed_s,stage";
  for (const auto& [name, value] : settings) line += concat(",", name);
  write_line(path_, "w", line + ",buckets,steps,step_ms,quartile_ms,over_start\n");
}

void TuningLog::add(const Row& row) const {
  std::string line = concat(quoted(row.subject), ",", rounded(row.elapsed_s), ",", row.stage);
  for (const auto& [name, value] : row.settings) line += concat(",", value);
  line += concat(",", std::to_string(row.buckets), ",", std::to_string(row.steps), ",",
                 rounded(row.step_s * 1e3), ",", rounded(row.quartile_s * 1e3), ",",
                 rounded(row.over_start), "\n");
  write_line(path_, "a", line);
}

}  // namespace horon::core
