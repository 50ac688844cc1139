// A choice of settings as a place in the unit cube, for the search among them.
#pragma once

#include <vector>

namespace horon::core {

// One coordinate for each setting, 0 to 1 over the range that is searched. Sizes are given by their
// logarithm. Where a program begins may lie outside.
using TuningPoint = std::vector<double>;

}  // namespace horon::core
