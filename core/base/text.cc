#include "horon/core/base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iomanip>

namespace horon::core {

std::string list_ranks(std::span<const int> ranks) {
  constexpr size_t shown_max = 16;
  TextStream out;
  const size_t shown = std::min(ranks.size(), shown_max);
  for (size_t i = 0; i < shown; ++i) {
    if (i > 0) out << (i + 1 == ranks.size() ? " and " : ", ");
    out << ranks[i];
  }
  if (shown < ranks.size()) out << ", ... (" << ranks.size() << " in all)";
  return out.str();
}

std::string shape_text(std::span<const int64_t> shape) {
  TextStream out;
  out << '[';
  for (size_t i = 0; i < shape.size(); ++i) out << (i > 0 ? ", " : "") << shape[i];
  out << ']';
  return out.str();
}

std::string real_text(double value) {
  std::array<char, 32> text;
  if (std::isnan(value)) return "nan";
  return {text.data(), std::to_chars(text.begin(), text.end(), value).ptr};
}

std::string bytes_text(uint64_t bytes) {
  constexpr std::array<const char*, 5> units = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  TextStream out;
  out << std::setprecision(4) << value << ' ' << units.at(unit);
  return out.str();
}

std::string one_field(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return text;
}

uint64_t hash_of(std::string_view text) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char letter : text) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 1099511628211ULL;
  }
  return hash;
}

}  // namespace horon::core
