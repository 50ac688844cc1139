// Finds the name that a misspelt name was probably meant to be.
#pragma once

#include <span>
#include <string_view>

namespace horon::core {

// The name with the smallest edit distance (Levenshtein) from `typed`, but one that begins with
// `typed` before that; the first one if several are equally near; empty if there are no names.
std::string_view nearest_name(std::string_view typed, std::span<const std::string_view> names);
// Whether it is one of them misspelt rather than a name of something else: at most a third of its
// letters are wrong, or it is the beginning of one, or begins with one. Without their common
// prefix.
bool may_mean_one_of(std::string_view typed, std::span<const std::string_view> names);

}  // namespace horon::core
