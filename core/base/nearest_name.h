// "Did you mean ...?"
#pragma once

#include <span>
#include <string_view>

namespace horon::core {

// The name that is the fewest letters away from `typed` (Levenshtein's distance); the first of
// equals, empty if there are no names.
std::string_view nearest_name(std::string_view typed, std::span<const std::string_view> names);

}  // namespace horon::core
