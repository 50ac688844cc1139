#include "horon/torch_bindings/logging/event_file.h"

#include <array>
#include <atomic>
#include <bit>
#include <filesystem>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/host_name.h"
#include "horon/core/base/text.h"

namespace horon {
namespace torch_detail {
namespace {

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  constexpr uint32_t kReflectedPolynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kReflectedPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}();

template <class Word>
std::string little_endian(Word word) {
  std::string bytes;
  for (size_t i = 0; i < sizeof(word); ++i) bytes += static_cast<char>(word >> 8 * i & 0xff);
  return bytes;
}

std::string varint(uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7) bytes += static_cast<char>((number & 0x7f) | 0x80);
  return bytes + static_cast<char>(number);
}

// Protobuf: a field's number and how it is written.
enum class Wire : uint8_t { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };
std::string key(unsigned field, Wire wire) {
  return varint(field << 3 | static_cast<unsigned>(wire));
}
std::string bytes_field(unsigned field, std::string_view content) {
  return key(field, Wire::Bytes) + varint(content.size()).append(content);
}
std::string wall_time(double time) {
  return key(1, Wire::Fixed64) + little_endian(std::bit_cast<uint64_t>(time));
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes)
    crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8; }

std::string tf_record(std::string_view content) {
  const std::string length = little_endian(uint64_t{content.size()});
  return core::concat(length, little_endian(masked_crc32c(length)), content,
                      little_endian(masked_crc32c(content)));
}

std::string version_event(double time) { return wall_time(time) + bytes_field(3, "brain.Event:2"); }

std::string scalars_event(const LogRecord& record) {
  std::string summary;
  for (const auto& [name, value] : record.values) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    summary += bytes_field(1, bytes_field(1, name) + key(2, Wire::Fixed32) + little_endian(bits));
  }
  return wall_time(record.time) + key(2, Wire::Varint) +
         varint(static_cast<uint64_t>(record.step)) + bytes_field(5, summary);
}

}  // namespace torch_detail

void TensorBoardSink::write(const LogRecord& record) {
  if (!file_.is_open()) {
    std::error_code failed;
    std::filesystem::create_directories(folder_, failed);
    if (failed) {
      throw Error(ErrorCode::OperationFailed,
                  core::concat("can't create the folder ", folder_, ": ", failed.message()));
    }
    static std::atomic<int> files{0};  // of this process, which may begin several in a second
    path_ = core::concat(folder_, "/events.out.tfevents.", static_cast<int64_t>(record.time), ".",
                         core::host_name(), ".", ::getpid(), ".", files++);
    // The file is kept only with its first record: else a later write would go on without one.
    torch_detail::AppendFile file(path_, true);
    file.append(torch_detail::tf_record(torch_detail::version_event(record.time)));
    file_ = std::move(file);
  }
  file_.append(torch_detail::tf_record(torch_detail::scalars_event(record)));
}

}  // namespace horon
