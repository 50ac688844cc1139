// Numbers as users write them, and back.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace horon::core {

// The whole text as a number, in C's notation whatever the locale; nothing if it is none.
std::optional<double> parse_number(std::string_view text);

// The same followed by nothing, B, K, M, G (1000s) or KiB, MiB, GiB (1024s). Exact for whole
// numbers of bytes up to 2^53.
std::optional<double> parse_bytes(std::string_view text);

// The shortest text that gives the same number again: "10", "0.25".
std::string number_text(double value);

}  // namespace horon::core
