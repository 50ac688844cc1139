// Finds the name that a misspelt name was probably meant to be.
#pragma once

#include <span>
#include <string_view>

namespace horon::core {

// The first name that begins with `typed`; if none does, the one with the smallest edit distance
// (Levenshtein), the first of several. Empty if there are no names.
std::string_view nearest_name(std::string_view typed, std::span<const std::string_view> names);
// Whether `typed` probably is one of the names misspelt, not the name of something else: at most a
// third of its letters are wrong, it is the beginning of a name, or it shares a word of at least
// five letters with one. Names are words joined by '_'; give them without a common prefix.
bool may_mean_one_of(std::string_view typed, std::span<const std::string_view> names);

}  // namespace horon::core
