// What one choice of an autotuner consists of.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace horon::core {

// Names and values, as {{"bucket_bytes", 4194304}, ...}: the same names in the same order for all
// choices of one autotuner. Names hold letters, digits and underscores.
using TuningSettings = std::vector<std::pair<std::string, int64_t>>;

}  // namespace horon::core
