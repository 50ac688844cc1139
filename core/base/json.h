// JSON strings, and the UTF-8 in them.
#pragma once

#include <string>
#include <string_view>

namespace horon::core {

// The text in quotes, escaped. A byte that is not valid UTF-8 is taken as a Latin-1 letter, so the
// result is always valid JSON.
std::string json_string(std::string_view text);

bool is_utf8(std::string_view text);

}  // namespace horon::core
