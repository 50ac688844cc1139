// Reads numbers as users write them, and prints them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace horon::core {

// The whole text as a number, in C notation in every locale; nullopt if it is not a number.
std::optional<double> parse_number(std::string_view text);

// A number of bytes, followed by nothing, B, K, M, G (powers of 1000) or KiB, MiB, GiB (powers of
// 1024). Exact for whole numbers of bytes up to 2^53.
std::optional<double> parse_bytes(std::string_view text);

// The shortest text that reads back as the same number: "10", "0.25".
std::string number_text(double value);

}  // namespace horon::core
