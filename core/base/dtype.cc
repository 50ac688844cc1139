#include "horon/core/base/dtype.h"

#include <array>

namespace horon {
namespace {

struct Facts {
  std::string_view name;
  size_t bytes;
  bool floating;
};

constexpr std::array<Facts, kDataTypeCount> facts = {{{"float32", 4, true},
                                                      {"float64", 8, true},
                                                      {"float16", 2, true},
                                                      {"bfloat16", 2, true},
                                                      {"int8", 1, false},
                                                      {"uint8", 1, false},
                                                      {"int16", 2, false},
                                                      {"int32", 4, false},
                                                      {"int64", 8, false},
                                                      {"bool", 1, false}}};

}  // namespace

size_t size_of(DataType dtype) { return facts.at(static_cast<size_t>(dtype)).bytes; }
std::string_view to_string(DataType dtype) { return facts.at(static_cast<size_t>(dtype)).name; }
bool is_floating(DataType dtype) { return facts.at(static_cast<size_t>(dtype)).floating; }

}  // namespace horon
