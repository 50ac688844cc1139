// SHA-256 (FIPS 180-4): the hash that sha256sum prints.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace horon::torch_detail {

class Sha256 {
 public:
  void add(const void* data, size_t bytes);
  // Of all bytes that were added, as 64 hexadecimal digits. Ends the hash.
  std::string hex();

 private:
  void mix(const unsigned char* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> block_{};
  uint64_t bytes_ = 0;
};

}  // namespace horon::torch_detail
