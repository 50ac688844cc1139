#include "horon/ops/choice/machine_constants.h"

#include <algorithm>
#include <array>
#include <sstream>

#include "horon/core/base/parse_number.h"
#include "horon/core/base/text.h"

namespace horon::ops {
namespace {

struct Field {
  std::string_view name;
  double MachineConstants::*value;
  double min;
  double max;
  bool is_rate;  // the slowest machine has the smallest value
};

constexpr std::array kFields = {
    Field{"handoff_us", &MachineConstants::handoff_us, 0.05, 1e4, false},
    Field{"sum_bytes_per_us", &MachineConstants::sum_bytes_per_us, 64, 1e6, true},
    Field{"process_copy_bytes_per_us", &MachineConstants::process_copy_bytes_per_us, 64, 1e6, true},
    Field{"ring_copy_bytes_per_us", &MachineConstants::ring_copy_bytes_per_us, 64, 1e6, true},
    Field{"message_us", &MachineConstants::message_us, 0.1, 1e6, false},
    Field{"wire_bytes_per_us", &MachineConstants::wire_bytes_per_us, 0.1, 1e6, true},
};

}  // namespace

MachineConstants within_reason(MachineConstants constants) {
  for (const Field& field : kFields) {
    double& value = constants.*field.value;
    // In this form a NaN becomes the least.
    value = value > field.min ? std::min(value, field.max) : field.min;
  }
  return constants;
}

MachineConstants slowest(const MachineConstants& a, const MachineConstants& b) {
  MachineConstants both;
  for (const Field& field : kFields) {
    const auto [less, more] = std::minmax(a.*field.value, b.*field.value);
    both.*field.value = field.is_rate ? less : more;
  }
  return both;
}

std::string to_text(const MachineConstants& constants) {
  std::string text;
  for (const Field& field : kFields) {
    text += core::concat(text.empty() ? "" : " ", field.name, "=",
                         core::number_text(constants.*field.value));
  }
  return text;
}

std::optional<MachineConstants> constants_in(std::string_view text) {
  std::istringstream words{std::string(text)};
  MachineConstants constants;
  std::string word;
  for (const Field& field : kFields) {
    const std::string begin = core::concat(field.name, "=");
    if (!(words >> word) || !word.starts_with(begin)) return std::nullopt;
    const std::optional<double> value = core::parse_number(word.substr(begin.size()));
    if (!value) return std::nullopt;
    constants.*field.value = *value;
  }
  if (words >> word || !(within_reason(constants) == constants)) return std::nullopt;
  return constants;
}

}  // namespace horon::ops
