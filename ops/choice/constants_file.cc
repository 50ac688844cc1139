#include "horon/ops/choice/constants_file.h"

#include <exception>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "horon/core/base/config.h"
#include "horon/core/base/log.h"
#include "horon/core/base/parse_number.h"
#include "horon/core/base/replace_file.h"
#include "horon/core/base/text.h"

namespace horon::ops {
namespace {

// Also the format's number.
constexpr std::string_view kTitleStart = "# Horon machine constants";
constexpr std::string_view kConstantsTitle = "# Horon machine constants 1: job, day, constants";

struct KeptLine {
  std::string job;
  int64_t day = 0;
  MachineConstants constants;
};

std::optional<KeptLine> parse_line(const std::string& text) {
  const size_t first = text.find('\t');
  const size_t second = first == std::string::npos ? first : text.find('\t', first + 1);
  if (second == std::string::npos) return std::nullopt;
  const auto day = core::parse_number(text.substr(first + 1, second - first - 1));
  const auto constants = constants_in(text.substr(second + 1));
  if (!day || !constants || !(*day >= 0 && *day < 1e9)) return std::nullopt;
  return KeptLine{text.substr(0, first), static_cast<int64_t>(*day), *constants};
}

// Not a pipe, in which reader and writer wait for each other.
bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// What is written to a device is never read again.
bool is_device(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) && !is_file(path) &&
         !std::filesystem::is_directory(path, ignored);
}

// A file of other content is somebody else's (a mistyped path); one of another version is not.
bool is_foreign(const std::string& path) {
  if (!is_file(path)) return false;
  std::ifstream file(path);
  std::string start(kTitleStart.size(), ' ');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  return file.gcount() > 0 && start != kTitleStart;
}

// Leaves out lines that have not this format.
std::vector<KeptLine> read_lines(const std::string& path) {
  std::vector<KeptLine> lines;
  if (!is_file(path)) return lines;
  std::ifstream file(path);
  std::string text;
  if (!std::getline(file, text) || text != kConstantsTitle) return lines;
  while (lines.size() < ConstantsFile::kLinesMax && std::getline(file, text)) {
    if (std::optional<KeptLine> line = parse_line(text)) lines.push_back(std::move(*line));
  }
  return lines;
}

}  // namespace

ConstantsFile::ConstantsFile(std::string path) : path_(std::move(path)) {}

std::optional<MachineConstants> ConstantsFile::load(const std::string& job, int64_t today) const {
  if (path_.empty()) return std::nullopt;
  for (const KeptLine& line : read_lines(path_)) {
    const int64_t age = today - line.day;
    if (line.job == core::one_field(job) && age >= 0 && age <= kDaysMax) return line.constants;
  }
  return std::nullopt;
}

bool ConstantsFile::save(const std::string& job, int64_t today,
                         const MachineConstants& constants) const {
  if (path_.empty() || is_device(path_)) return false;
  if (is_foreign(path_)) {
    core::log(core::LogLevel::Warn,
              core::concat("the measured constants are not kept: ", path_,
                           " is not a file of them (its first line does not begin with \"",
                           kTitleStart, "\"); see HORON_MEASURE_FILE"));
    return false;
  }
  std::vector<KeptLine> lines = read_lines(path_);
  std::erase_if(lines, [&](const KeptLine& line) { return line.job == core::one_field(job); });
  lines.insert(lines.begin(), {core::one_field(job), today, constants});
  if (lines.size() > kLinesMax) lines.resize(kLinesMax);
  std::string text = core::concat(kConstantsTitle, "\n");
  for (const KeptLine& line : lines) {
    text += core::concat(line.job, "\t", line.day, "\t", to_text(line.constants), "\n");
  }
  try {
    const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
    if (!folder.empty()) std::filesystem::create_directories(folder);
    core::replace_file(path_, text);
  } catch (const std::exception& error) {
    core::log(core::LogLevel::Debug,
              core::concat("the measured constants are not kept: ", error.what()));
    return false;
  }
  return true;
}

std::string default_constants_path(const std::string& host_name) {
  std::string cache = core::environment_value("XDG_CACHE_HOME");
  if (cache.empty()) {
    const std::string home = core::environment_value("HOME");
    if (home.empty()) return "";
    cache = core::concat(home, "/.cache");
  }
  return core::concat(cache, "/horon/constants.", host_name);
}

}  // namespace horon::ops
