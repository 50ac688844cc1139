#include "horon/core/tuning/warm_start_file.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/parse_number.h"
#include "horon/core/base/replace_file.h"
#include "horon/core/base/text.h"

namespace horon::core {
namespace {

// Also the format's number.
constexpr std::string_view kTitle = "# Horon autotuning 1: reducer, facts, settings";
constexpr double kWholeMax = 9007199254740992.0;  // 2^53

template <class... Values>
[[noreturn]] void fail(const std::string& path, const Values&... values) {
  throw Error(ErrorCode::Config, concat("HORON_AUTOTUNE_WARM_START=", path, ": ", values...));
}

std::optional<TuningSettings> parse_settings(const std::string& text) {
  TuningSettings settings;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos || equals == 0) return std::nullopt;
    const std::optional<double> value = parse_number(word.substr(equals + 1));
    if (!value || *value < 0 || *value > kWholeMax || *value != std::floor(*value)) {
      return std::nullopt;
    }
    settings.emplace_back(word.substr(0, equals), static_cast<int64_t>(*value));
  }
  return settings.empty() ? std::nullopt : std::optional(settings);
}

}  // namespace

WarmStartFile::WarmStartFile(std::string path) : path_(std::move(path)) {}

WarmStartFile::Entries WarmStartFile::load() const {
  errno = 0;
  std::ifstream file(path_);
  if (!file.is_open()) {
    if (errno == ENOENT) return {};
    fail(path_, "can't be read: ", std::strerror(errno));
  }
  std::string line;
  if (!std::getline(file, line) || line != kTitle) {
    fail(path_, "is not a file of Horon's autotuning (its first line is not \"", kTitle, "\")");
  }
  Entries entries;
  for (int number = 2; std::getline(file, line); ++number) {
    const size_t first = line.find('\t');
    const size_t second = first == std::string::npos ? first : line.find('\t', first + 1);
    const std::optional<TuningSettings> settings =
        second == std::string::npos ? std::nullopt : parse_settings(line.substr(second + 1));
    if (!settings) fail(path_, "line ", number, " is not: name, tab, facts, tab, settings");
    entries[line.substr(0, first)] = {line.substr(first + 1, second - first - 1), *settings};
  }
  return entries;
}

std::optional<WarmStartFile::Entry> WarmStartFile::find(const std::string& name) const {
  const Entries entries = load();
  const auto found = entries.find(one_field(name));
  return found == entries.end() ? std::nullopt : std::optional(found->second);
}

void WarmStartFile::save(const std::string& name, const Entry& entry) const {
  Entries entries = load();
  entries[one_field(name)] = entry;
  std::string text = concat(kTitle, "\n");
  for (const auto& [each, of_it] : entries) {
    text += concat(each, "\t", one_field(of_it.facts), "\t", settings_text(of_it.settings), "\n");
  }
  try {
    replace_file(path_, text);
  } catch (const Error& error) {
    fail(path_, error.what());
  }
}

std::string settings_text(const TuningSettings& settings) {
  std::string text;
  for (const auto& [name, value] : settings) {
    text += concat(text.empty() ? "" : " ", name, "=", std::to_string(value));
  }
  return text;
}

}  // namespace horon::core
