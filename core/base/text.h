// Helpers to build messages. (g++ 12 has no std::format.)
#pragma once

#include <cstdint>
#include <locale>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace horon::core {

// Writes numbers alike on all ranks and in all programs, whatever locale a program has set: what is
// written travels, goes into files and is read again.
class TextStream : public std::ostringstream {
 public:
  TextStream() { imbue(std::locale::classic()); }
};

// The arguments as text, one after the other. Throws std::bad_alloc.
template <class... Args>
std::string concat(const Args&... args) {
  TextStream out;
  out.exceptions(std::ios_base::badbit);  // else the text ends where memory does
  (out << ... << args);
  return out.str();
}

// "0, 1 and 5"; long lists end in "... (1024 in all)".
std::string list_ranks(std::span<const int> ranks);

// "[2, 3]"
std::string shape_text(std::span<const int64_t> shape);

// "64 MiB", "1.5 KiB", "12 B"
std::string bytes_text(uint64_t bytes);

// The shortest text that reads back as the same number, so that texts of two numbers differ.
std::string real_text(double value);

// Makes the text one field of a file that tabs and newlines divide: each of these becomes a space.
std::string one_field(std::string text);

// FNV-1a, 64 bits: the same on every host, unlike std::hash.
uint64_t hash_of(std::string_view text);

}  // namespace horon::core
