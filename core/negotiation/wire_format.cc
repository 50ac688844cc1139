#include "horon/core/negotiation/wire_format.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "horon/core/base/text.h"

namespace horon::core {
namespace {

// Changes with every change of the format, so that two builds never misread each other.
constexpr uint8_t kFormatVersion = 7;

class Writer {
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

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

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

void write(Writer& out, const PlannedEntry& entry) {
  out.number(entry.id);
  out.text(entry.name);
  out.spec(entry.spec);
  out.flags(entry.produced);
  out.numbers(entry.extents);
}

PlannedEntry read_planned_entry(Reader& in) {
  PlannedEntry entry;
  entry.id = in.number32();
  entry.name = in.text();
  entry.spec = in.spec();
  entry.produced = in.flags();
  entry.extents = in.numbers<int64_t>();
  return entry;
}

struct WriteItem {
  Writer& out;

  void operator()(const Ready& item) const {
    out.number(item.id);
    if (item.id == kNoId) {
      out.text(item.name);
      out.spec(item.spec);
    }
    out.flags(item.absent);
    out.numbers(item.extents);
  }
  void operator()(const Refused& item) const {
    out.text(item.name);
    out.text(item.text);
  }
  void operator()(const Join&) const {}
  void operator()(const Shutdown&) const {}
  void operator()(const Ping& item) const { out.number(item.number); }
  void operator()(const Pong& item) const { out.number(item.number); }
  void operator()(const Plan& item) const {
    out.number(item.batches.size());
    for (const PlannedBatch& batch : item.batches) {
      out.numbers(batch.joined);
      out.number(batch.entries.size());
      for (const PlannedEntry& entry : batch.entries) write(out, entry);
    }
  }
  void operator()(const Fail& item) const {
    out.text(item.name);
    out.byte(static_cast<uint8_t>(item.code));
    out.text(item.text);
  }
  void operator()(const Unused& item) const { out.text(item.name); }
  void operator()(const Joined& item) const { out.number(static_cast<uint32_t>(item.last)); }
  void operator()(const Bye&) const {}
  void operator()(const Stall& item) const { out.text(item.text); }
  void operator()(const Abort& item) const {
    out.byte(static_cast<uint8_t>(item.code));
    out.text(item.text);
  }
  void operator()(const Drained& item) const { out.number(item.batches); }
  void operator()(const Freeze& item) const {
    out.numbers(item.ids);
    out.numbers(item.places);
  }
  void operator()(const Thaw& item) const { out.numbers(item.places); }
  void operator()(const Deviate& item) const { out.number(item.place); }
  void operator()(const RingItem& item) const { out.number(pack(item)); }
  void operator()(const Seek& item) const { out.text(item.name); }
  void operator()(const Found& item) const {
    out.text(item.name);
    out.byte(item.gone ? 1 : 0);
  }
};

constexpr int kErrorCodes = static_cast<int>(ErrorCode::Internal) + 1;

Ready read_ready(Reader& in) {
  Ready item;
  item.id = in.number32();
  if (item.id == kNoId) {
    item.name = in.text();
    item.spec = in.spec();
    if (item.spec == nullptr) Reader::bad("a submission has neither id nor spec");
  }
  item.absent = in.flags();
  item.extents = in.numbers<int64_t>();
  return item;
}

Plan read_plan(Reader& in) {
  Plan item;
  item.batches.resize(in.count(2));
  for (PlannedBatch& batch : item.batches) {
    batch.joined = in.numbers<int>();
    const size_t entries = in.count(5);
    batch.entries.reserve(entries);
    for (size_t i = 0; i < entries; ++i) batch.entries.push_back(read_planned_entry(in));
  }
  return item;
}

// One case per alternative of Item, in its order.
Item read_item(Reader& in) {
  switch (in.byte()) {
    case 0:
      return read_ready(in);
    case 1:
      return Refused{in.text(), in.text()};
    case 2:
      return Join{};
    case 3:
      return Shutdown{};
    case 4:
      return Ping{in.number()};
    case 5:
      return Pong{in.number()};
    case 6:
      return read_plan(in);
    case 7: {
      Fail item;
      item.name = in.text();
      item.code = in.enumerator<ErrorCode>(kErrorCodes);
      item.text = in.text();
      return item;
    }
    case 8:
      return Unused{in.text()};
    case 9:
      return Joined{static_cast<int32_t>(in.number32())};
    case 10:
      return Bye{};
    case 11:
      return Stall{in.text()};
    case 12: {
      const auto code = in.enumerator<ErrorCode>(kErrorCodes);
      return Abort{code, in.text()};
    }
    case 13:
      return Drained{in.number()};
    case 14:
      return Freeze{in.numbers<EntryId>(), in.numbers<Place>()};
    case 15:
      return Thaw{in.numbers<Place>()};
    case 16:
      return Deviate{in.number32()};
    case 17:
      return unpack(in.number());
    case 18:
      return Seek{in.text()};
    case 19:
      return Found{in.text(), in.enumerator<int>(2) == 1};
    default:
      Reader::bad("an item has an unknown kind");
  }
}

}  // namespace

std::vector<std::byte> encode(const Envelope& envelope) {
  Writer out;
  out.byte(kFormatVersion);
  out.number(envelope.set);
  out.number(envelope.applied);
  out.number(envelope.items.size());
  for (const Item& item : envelope.items) {
    out.byte(static_cast<uint8_t>(item.index()));
    std::visit(WriteItem{out}, item);
  }
  return out.take();
}

Envelope decode(std::span<const std::byte> bytes) {
  Reader in(bytes);
  if (in.byte() != kFormatVersion) Reader::bad("it is of another version of Horon");
  Envelope envelope;
  envelope.set = in.number32();
  envelope.applied = in.number();
  const size_t items = in.count(1);
  for (size_t i = 0; i < items; ++i) envelope.items.push_back(read_item(in));
  if (in.left() != 0) Reader::bad("bytes are left over");
  return envelope;
}

std::vector<std::byte> farewell() { return {std::byte{kFormatVersion}}; }

bool is_farewell(std::span<const std::byte> bytes) {
  return bytes.size() == 1 && bytes.front() == std::byte{kFormatVersion};
}

uint32_t set_of(std::span<const std::byte> bytes) {
  Reader in(bytes);
  if (in.byte() != kFormatVersion) Reader::bad("it is of another version of Horon");
  return in.number32();
}

}  // namespace horon::core
