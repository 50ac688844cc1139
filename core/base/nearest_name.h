// Finds the name that a misspelt name was probably meant to be.
#pragma once

#include <span>
#include <string_view>

namespace horon::core {

// The name with the smallest edit distance (Levenshtein) from `typed`, but one that begins with
// `typed` before that; the first one if several are equally near; empty if there are no names.
std::string_view nearest_name(std::string_view typed, std::span<const std::string_view> names);
// Whether it is one of them misspelt, or meant for one, rather than a name of something else: at
// most a third of its letters are wrong, it is the beginning of one, or has a word of one, of five
// letters at least. Names are words joined by '_'; give them without a prefix that all have.
bool may_mean_one_of(std::string_view typed, std::span<const std::string_view> names);

}  // namespace horon::core
