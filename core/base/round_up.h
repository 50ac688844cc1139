// Sizes that are whole multiples of a step.
#pragma once

#include <concepts>

namespace horon::core {

inline constexpr int kCacheLineBytes = 64;

// `value` is not negative, `step` is positive.
template <std::integral Integer>
constexpr Integer round_up(Integer value, Integer step) {
  return (value + step - 1) / step * step;
}

template <std::integral Integer>
constexpr Integer whole_cache_lines(Integer bytes) {
  return round_up(bytes, static_cast<Integer>(kCacheLineBytes));
}

}  // namespace horon::core
