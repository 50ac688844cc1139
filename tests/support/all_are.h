// Whether all values equal one value, by a call that a sanitizer checks as a whole. In a loop it
// would check each value that is read, which takes tens of times as long.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace horon {

template <class T>
bool all_are(std::span<const T> values, T value) {
  if (values.empty()) return true;
  if (std::memcmp(values.data(), &value, sizeof(T)) != 0) return false;
  return std::memcmp(values.data(), values.data() + 1, values.size_bytes() - sizeof(T)) == 0;
}
template <class T>
bool all_are(const std::vector<T>& values, T value) {
  return all_are(std::span<const T>(values), value);
}

}  // namespace horon
