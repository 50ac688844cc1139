#include "horon/core/base/parse_number.h"

#include <array>
#include <charconv>
#include <system_error>

namespace horon::core {
namespace {

struct Suffix {
  std::string_view text;
  double factor;
};

constexpr double kKiB = 1024;
constexpr std::array<Suffix, 8> kSuffixes = {{{"", 1},
                                              {"B", 1},
                                              {"K", 1e3},
                                              {"M", 1e6},
                                              {"G", 1e9},
                                              {"KiB", kKiB},
                                              {"MiB", kKiB* kKiB},
                                              {"GiB", kKiB* kKiB* kKiB}}};

struct Taken {
  double value;
  std::string_view rest;  // what follows the number
};

std::optional<Taken> take_number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return Taken{value, text.substr(static_cast<size_t>(end - text.data()))};
}

}  // namespace

std::optional<double> parse_number(std::string_view text) {
  const std::optional<Taken> taken = take_number(text);
  if (!taken || !taken->rest.empty()) return std::nullopt;
  return taken->value;
}

std::optional<double> parse_bytes(std::string_view text) {
  const std::optional<Taken> taken = take_number(text);
  if (!taken) return std::nullopt;
  for (const Suffix& suffix : kSuffixes) {
    if (suffix.text == taken->rest) return taken->value * suffix.factor;
  }
  return std::nullopt;
}

std::string number_text(double value) {
  std::array<char, 400> out{};  // the longest double without exponent has 309 digits before the dot
  const auto [end, error] =
      std::to_chars(out.data(), out.data() + out.size(), value, std::chars_format::fixed);
  return error == std::errc() ? std::string(out.data(), end) : std::string("?");
}

}  // namespace horon::core
