// Finds the name that a misspelt name was probably meant to be.
#pragma once

#include <span>
#include <string_view>

namespace horon::core {

// The name with the smallest edit distance (Levenshtein) from `typed`; the first one if several are
// equally near; empty if there are no names.
std::string_view nearest_name(std::string_view typed, std::span<const std::string_view> names);

}  // namespace horon::core
