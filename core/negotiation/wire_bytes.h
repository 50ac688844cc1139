// Numbers, texts and specs as bytes of a control message. Reading checks every bound: bytes that no
// writer has made are an error, whatever they are.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "horon/core/base/entry_spec.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/negotiation/protocol.h"

namespace horon::core {

class WireWriter {
 public:
  void byte(uint8_t value) { bytes_.push_back(static_cast<std::byte>(value)); }

  void number(uint64_t value) {
    while (value >= 0x80) {
      byte(static_cast<uint8_t>(value | 0x80));
      value >>= 7;
    }
    byte(static_cast<uint8_t>(value));
  }

  void real(double value) {
    const auto bits = std::bit_cast<uint64_t>(value);
    for (int shift = 0; shift < 64; shift += 8) byte(static_cast<uint8_t>(bits >> shift));
  }

  void text(const std::string& value) {
    number(value.size());
    const auto* data = reinterpret_cast<const std::byte*>(value.data());
    bytes_.insert(bytes_.end(), data, data + value.size());
  }

  void bytes(const std::vector<std::byte>& value) {
    number(value.size());
    bytes_.insert(bytes_.end(), value.begin(), value.end());
  }

  void flags(const std::vector<bool>& value) {
    number(value.size());
    for (size_t i = 0; i < value.size(); i += 8) {
      uint8_t packed = 0;
      for (size_t bit = 0; bit < 8 && i + bit < value.size(); ++bit) {
        if (value[i + bit]) packed = static_cast<uint8_t>(packed | (1U << bit));
      }
      byte(packed);
    }
  }

  template <class T>
  void numbers(const std::vector<T>& values) {
    number(values.size());
    for (const T value : values) number(static_cast<uint64_t>(value));
  }

  void spec(const SpecPtr& spec) {
    byte(spec != nullptr ? 1 : 0);
    if (spec == nullptr) return;
    byte(static_cast<uint8_t>(spec->kind));
    byte(static_cast<uint8_t>(spec->dtype));
    byte(static_cast<uint8_t>(spec->reduce_op));
    byte(static_cast<uint8_t>(spec->device));
    number(static_cast<uint32_t>(spec->root));
    real(spec->prescale);
    real(spec->postscale);
    byte(static_cast<uint8_t>(spec->compression));
    number(static_cast<uint64_t>(spec->piece_bytes));
    byte(spec->captured ? 1 : 0);
    numbers(spec->splits);
    byte(spec->as_one ? 1 : 0);
    number(spec->parts.size());
    for (const TensorPart& part : spec->parts) {
      text(part.name);
      numbers(part.shape);
    }
  }

  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t left() const { return bytes_.size() - position_; }

  uint8_t byte() {
    if (left() == 0) bad("it ends too early");
    return static_cast<uint8_t>(bytes_[position_++]);
  }

  uint64_t number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t next = byte();
      if (shift == 63 && next > 1) bad("a number is too large");
      value |= static_cast<uint64_t>(next & 0x7f) << shift;
      if ((next & 0x80) != 0) continue;
      if (next == 0 && shift > 0) bad("a number is longer than it needs to be");
      return value;
    }
    bad("a number is too long");
  }

  uint32_t number32() {
    const uint64_t value = number();
    if (value > UINT32_MAX) bad("a number is too large");
    return static_cast<uint32_t>(value);
  }

  double real() {
    uint64_t bits = 0;
    for (int shift = 0; shift < 64; shift += 8) bits |= static_cast<uint64_t>(byte()) << shift;
    return std::bit_cast<double>(bits);
  }

  // A count of things that take at least `bytes_each` bytes: bounds what a hostile length makes us
  // allocate.
  size_t count(size_t bytes_each) {
    const uint64_t value = number();
    if (value > left() / bytes_each) bad("a length passes the end");
    return static_cast<size_t>(value);
  }

  std::string text() {
    const size_t size = count(1);
    std::string value(size, '\0');
    std::memcpy(value.data(), bytes_.data() + position_, size);
    position_ += size;
    return value;
  }

  std::vector<std::byte> bytes() {
    const size_t size = count(1);
    const std::byte* const data = bytes_.data() + position_;
    position_ += size;
    return {data, data + size};
  }

  std::vector<bool> flags() {
    const uint64_t size = number();
    if (size > left() * 8) bad("a length passes the end");
    std::vector<bool> value(static_cast<size_t>(size));
    for (size_t i = 0; i < value.size(); i += 8) {
      const uint8_t packed = byte();
      for (size_t bit = 0; bit < 8 && i + bit < value.size(); ++bit) {
        value[i + bit] = (packed >> bit & 1) != 0;
      }
    }
    if (size % 8 != 0 && static_cast<uint8_t>(bytes_[position_ - 1]) >> size % 8 != 0) {
      bad("flags stand behind the last one");
    }
    return value;
  }

  template <class T>
  std::vector<T> numbers() {
    std::vector<T> values(count(1));
    for (T& value : values) {
      const uint64_t wide = number();
      value = static_cast<T>(wide);
      if (static_cast<uint64_t>(value) != wide) bad("a number is too large");
    }
    return values;
  }

  template <class Enum>
  Enum enumerator(int values) {
    const uint8_t value = byte();
    if (value >= values) bad("an enumerator is out of range");
    return static_cast<Enum>(value);
  }

  SpecPtr spec() {
    if (enumerator<int>(2) == 0) return nullptr;
    auto spec = std::make_shared<EntrySpec>();
    spec->kind = enumerator<CollectiveKind>(kCollectiveKindCount);
    spec->dtype = enumerator<DataType>(kDataTypeCount);
    spec->reduce_op = enumerator<ReduceOp>(kReduceOpCount);
    spec->device = enumerator<DeviceKind>(kDeviceKindCount);
    spec->root = static_cast<int32_t>(number32());
    spec->prescale = real();
    spec->postscale = real();
    spec->compression = enumerator<Compression>(kCompressionCount);
    spec->piece_bytes = static_cast<int64_t>(number());
    if (spec->piece_bytes < 0) bad("the length of a piece is too large");
    spec->captured = enumerator<int>(2) == 1;
    spec->splits = numbers<int64_t>();
    spec->as_one = enumerator<int>(2) == 1;
    spec->parts.resize(count(2));
    for (TensorPart& part : spec->parts) {
      part.name = text();
      part.shape = numbers<int64_t>();
    }
    if (!countable(*spec)) bad("a shape is negative or too large");
    return spec;
  }

  [[noreturn]] static void bad(const char* what) {
    throw Error(ErrorCode::Internal, concat("a control message can't be read: ", what));
  }

 private:
  std::span<const std::byte> bytes_;
  size_t position_ = 0;
};

}  // namespace horon::core
