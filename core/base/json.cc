#include "horon/core/base/json.h"

#include <array>
#include <cstdint>
#include <cstdio>

namespace horon::core {
namespace {

// The number of bytes of the UTF-8 letter at `at`; 0 if they are not valid UTF-8.
size_t letter_bytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || at + bytes > text.size()) return 0;
  uint32_t code = first & (0xffU >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(at + i) & 0x3fU);
  }
  // Not valid: overlong forms, surrogates (U+D800 to U+DFFF), and code points beyond U+10FFFF.
  constexpr std::array<uint32_t, 5> code_min = {0, 0, 0x80, 0x800, 0x10000};
  if (code < code_min.at(bytes) || code > 0x10ffff) return 0;
  return code >= 0xd800 && code <= 0xdfff ? 0 : bytes;
}

void append_escaped(std::string& out, unsigned char byte) {
  std::array<char, 8> code{};
  std::snprintf(code.data(), code.size(), "\\u%04x", byte);
  out += code.data();
}

}  // namespace

std::string json_string(std::string_view text) {
  std::string out = "\"";
  size_t at = 0;
  while (at < text.size()) {
    const char letter = text[at];
    const size_t bytes = letter_bytes(text, at);
    if (letter == '"' || letter == '\\') {
      out += '\\';
      out += letter;
    } else if (bytes == 0 || static_cast<unsigned char>(letter) < 0x20) {
      append_escaped(out, static_cast<unsigned char>(letter));
    } else {
      out += text.substr(at, bytes);
    }
    at += bytes == 0 ? 1 : bytes;
  }
  return out += '"';
}

bool is_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t bytes = letter_bytes(text, at);
    if (bytes == 0) return false;
    at += bytes;
  }
  return true;
}

}  // namespace horon::core
