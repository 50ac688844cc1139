// Arguments of a test program besides gtest's own, such as --seed=7.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace horon::testing_support {

// Returns the value of "--name=VALUE", or an empty text for "--name"; null if the argument is
// absent.
inline const char* argument(std::string_view name) {
  static const std::vector<std::string> all = testing::internal::GetArgvs();
  for (const std::string& one : all) {
    if (!one.starts_with(name)) continue;
    if (one.size() == name.size()) return "";
    if (one[name.size()] == '=') return one.c_str() + name.size() + 1;
  }
  return nullptr;
}

inline int number_argument(std::string_view name, int otherwise) {
  const char* const given = argument(name);
  return given == nullptr ? otherwise : std::atoi(given);
}

}  // namespace horon::testing_support
