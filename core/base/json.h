// Text as JSON, for what core writes itself (the timeline).
#pragma once

#include <string>
#include <string_view>

namespace horon::core {

// The text in quotes, escaped. Bytes that are no UTF-8 are shown as the letters of Latin-1, so the
// result is always valid.
std::string json_string(std::string_view text);

}  // namespace horon::core
