#include "horon/core/negotiation/wire_format.h"

#include <utility>

#include "horon/core/negotiation/wire_bytes.h"

namespace horon::core {
namespace {

using Writer = WireWriter;
using Reader = WireReader;

// Changes with every change of the format, so that two builds never misread each other.
constexpr uint8_t kFormatVersion = 8;

void write(Writer& out, const PlannedEntry& entry) {
  out.number(entry.id);
  out.text(entry.name);
  out.spec(entry.spec);
  if (entry.spec != nullptr) out.byte(entry.eager ? 1 : 0);
  out.number(entry.round);
  out.flags(entry.produced);
  out.numbers(entry.extents);
}

PlannedEntry read_planned_entry(Reader& in) {
  PlannedEntry entry;
  entry.id = in.number32();
  entry.name = in.text();
  entry.spec = in.spec();
  if (entry.spec != nullptr) entry.eager = in.enumerator<int>(2) == 1;
  entry.round = in.number();
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
      out.byte(item.eager ? 1 : 0);
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
    out.number(item.round);
  }
  void operator()(const Unused& item) const {
    out.text(item.name);
    out.number(item.round);
  }
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
  void operator()(const Eager& item) const {
    out.number(item.id);
    out.number(item.round);
    out.bytes(item.elements);
  }
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
    item.eager = in.enumerator<int>(2) == 1;
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
    const size_t entries = in.count(6);
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
      item.round = in.number();
      return item;
    }
    case 8:
      return Unused{in.text(), in.number()};
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
    case 20:
      return Eager{in.number32(), in.number(), in.bytes()};
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
