#include "horon/core/negotiation/wire_format.h"

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/tests/support/simulation/random_envelope.h"
#include "horon/tests/support/spec_changes.h"

namespace horon::core {
namespace {

using simulation::random_envelope;
using simulation::same;
using ::testing::HasSubstr;
using ::testing::Not;
using Bytes = std::vector<std::byte>;

// The byte that every message begins with.
std::byte format_version() { return encode(Envelope{}).front(); }

// A message of the current format version that goes on with these bytes.
Bytes message_of(std::initializer_list<int> values) {
  Bytes out = {format_version()};
  for (const int value : values) out.push_back(static_cast<std::byte>(value));
  return out;
}

// Expects that these bytes throw an Error, or decode to an envelope that is encoded to the very
// same bytes.
void expect_sound(const Bytes& bytes) {
  try {
    ASSERT_EQ(encode(decode(bytes)), bytes);
  } catch (const Error& error) {
    ASSERT_EQ(error.code(), ErrorCode::Internal);
    ASSERT_THAT(error.what(), HasSubstr("a control message can't be read: "));
  }
}

std::string complaint(const Bytes& bytes) {
  try {
    decode(bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

Bytes one(const Item& item) {
  Envelope envelope;
  envelope.items.push_back(item);
  return encode(envelope);
}

TEST(WireFormat, RoundTripOfRandomMessages) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const Envelope envelope = random_envelope(random);
    const Bytes bytes = encode(envelope);
    const Envelope back = decode(bytes);
    ASSERT_TRUE(same(envelope, back)) << i;
    ASSERT_EQ(encode(back), bytes) << i;
  }
}

TEST(WireFormat, EveryKindOfItem) {
  std::mt19937_64 random(2);
  for (size_t kind = 0; kind < std::variant_size_v<Item>; ++kind) {
    Envelope envelope;
    envelope.items.push_back(simulation::random_item(random, kind));
    ASSERT_EQ(envelope.items.front().index(), kind);
    EXPECT_TRUE(same(envelope, decode(encode(envelope)))) << kind;
  }
}

TEST(WireFormat, EveryFieldOfASpecTravels) {
  for (const test::SpecChange& change : test::spec_changes()) {
    EntrySpec spec = test::spec_to_change();
    change.apply(spec);
    Ready ready;
    ready.name = "grad";
    ready.spec = std::make_shared<EntrySpec>(spec);
    const Envelope back = decode(one(ready));
    EXPECT_EQ(*std::get<Ready>(back.items.front()).spec, spec) << change.field;
  }
}

TEST(WireFormat, ExtremeValues) {
  EntrySpec spec;
  spec.root = std::numeric_limits<int32_t>::min();
  spec.prescale = -0.0;
  spec.postscale = std::numeric_limits<double>::denorm_min();
  spec.dtype = DataType::Int8;
  spec.parts = {{std::string("\0\xff", 2), {std::numeric_limits<int64_t>::max()}}};
  spec.compression = Compression::BFloat16;
  spec.piece_bytes = std::numeric_limits<int64_t>::max();
  spec.captured = true;
  spec.splits = {0, std::numeric_limits<int64_t>::max()};
  spec.as_one = true;
  Ready ready;
  ready.spec = std::make_shared<EntrySpec>(spec);
  ready.absent = {true, false, true, false, true, false, true, true, true};
  ready.extents = {std::numeric_limits<int64_t>::max(), 0};
  Envelope envelope;
  envelope.set = std::numeric_limits<uint32_t>::max();
  envelope.applied = std::numeric_limits<uint64_t>::max();
  envelope.items.emplace_back(ready);
  EXPECT_TRUE(same(envelope, decode(encode(envelope))));
  EXPECT_TRUE(same(Envelope{}, decode(encode(Envelope{}))));
}

TEST(WireFormat, EveryTruncationIsRefused) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 300; ++i) {
    const Bytes bytes = encode(random_envelope(random));
    for (size_t size = 0; size < bytes.size(); ++size) {
      const Bytes cut(bytes.begin(), bytes.begin() + static_cast<int64_t>(size));
      ASSERT_THROW(decode(cut), Error) << size << " of " << bytes.size();
    }
  }
}

TEST(WireFormat, BytesLeftOverAreRefused) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 300; ++i) {
    Bytes bytes = encode(random_envelope(random));
    bytes.push_back(static_cast<std::byte>(random()));
    ASSERT_THROW(decode(bytes), Error);
  }
}

TEST(WireFormat, DamagedBytesNeverCrash) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes = encode(random_envelope(random));
    for (uint64_t flips = 1 + random() % 3; flips > 0; --flips) {
      bytes[random() % bytes.size()] ^= static_cast<std::byte>(1U << random() % 8);
    }
    expect_sound(bytes);
  }
}

TEST(WireFormat, EveryByteOfSmallMessagesInEveryValue) {
  std::mt19937_64 random(6);
  for (size_t kind = 0; kind < std::variant_size_v<Item>; ++kind) {
    const Bytes bytes = one(simulation::random_item(random, kind));
    for (size_t place = 0; place < bytes.size(); ++place) {
      for (int value = 0; value < 256; ++value) {
        Bytes changed = bytes;
        changed[place] = static_cast<std::byte>(value);
        expect_sound(changed);
      }
    }
  }
}

// Mostly small numbers: they can be lengths, kinds and flags, so that more of the noise is decoded.
TEST(WireFormat, NoiseNeverCrashes) {
  std::mt19937_64 random(7);
  std::map<std::string, int> answers;
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes(random() % 64);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() >> random() % 64);
    if (!bytes.empty()) bytes[0] = format_version();
    expect_sound(bytes);
    ++answers[complaint(bytes)];
  }
  std::string told;
  for (const auto& [answer, times] : answers) told += answer + ": " + std::to_string(times) + "\n";
  EXPECT_THAT(told, Not(HasSubstr("another version of Horon")));
  EXPECT_GE(answers.size(), 7U) << told;
  EXPECT_GE(answers["none"], 1) << told;
}

TEST(WireFormat, AnotherVersionIsNamed) {
  Bytes bytes = encode(Envelope{});
  bytes[0] = std::byte{99};
  ASSERT_NE(bytes[0], format_version());
  EXPECT_THAT(complaint(bytes), HasSubstr("another version of Horon"));
  EXPECT_THROW(set_of(bytes), Error) << "its set may be one that this rank has removed";
}

// Lengths that promise more than there is must be refused before anything is allocated.
TEST(WireFormat, HugeLengthsAllocateNothing) {
  const Bytes items = message_of({0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f});
  EXPECT_THAT(complaint(items), HasSubstr("a length passes the end"));
  const Bytes text = message_of({0, 0, 1, 11, 0xff, 0xff, 0xff, 0xff, 0x0f, 'x'});
  EXPECT_THAT(complaint(text), HasSubstr("a length passes the end"));
  const Bytes batches = message_of({0, 0, 1, 6, 0xff, 0xff, 0xff, 0x7f, 0, 0});
  EXPECT_THAT(complaint(batches), HasSubstr("a length passes the end"));
}

TEST(WireFormat, NumbersHaveOneForm) {
  EXPECT_THAT(complaint(message_of({0x80, 0, 0, 0, 0})), HasSubstr("longer than it needs"));
  const Bytes eleven =
      message_of({0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x81, 0});
  EXPECT_THAT(complaint(eleven), HasSubstr("a number is too large"));
  EXPECT_THAT(complaint(message_of({0xff, 0xff, 0xff, 0xff, 0x7f, 0, 0, 0})),
              HasSubstr("a number is too large"));
}

TEST(WireFormat, ShapesThatCantBeAreRefused) {
  const auto complaint_of = [](std::vector<std::vector<int64_t>> shapes) {
    EntrySpec spec;
    for (const auto& shape : shapes) spec.parts.push_back({"x", shape});
    Ready ready;
    ready.name = "x";
    ready.spec = std::make_shared<EntrySpec>(spec);
    return complaint(one(ready));
  };
  constexpr int64_t huge = int64_t{1} << 40;
  EXPECT_THAT(complaint_of({{-1}}), HasSubstr("negative or too large"));
  EXPECT_THAT(complaint_of({{huge, huge}}), HasSubstr("negative or too large"));
  EXPECT_THAT(complaint_of({{huge, huge, 0}}), HasSubstr("negative or too large"));
  EXPECT_THAT(complaint_of({{huge, 1 << 20}, {huge, 1 << 20}}), HasSubstr("negative or too large"));
  EXPECT_EQ(complaint_of({{huge}, {huge, 0}}), "none");
}

TEST(WireFormat, ASubmissionThatNamesNoTensorsIsRefused) {
  Ready ready;
  ready.name = "x";
  EXPECT_THAT(complaint(one(ready)), HasSubstr("neither id nor spec"));
  EntrySpec spec;
  spec.piece_bytes = -1;
  ready.spec = std::make_shared<EntrySpec>(spec);
  EXPECT_THAT(complaint(one(ready)), HasSubstr("the length of a piece"));
}

TEST(WireFormat, CachedSubmissionsAreSmall) {
  Envelope envelope;
  for (EntryId id = 1; id <= 100; ++id) {
    Ready ready;
    ready.id = id;
    envelope.items.emplace_back(ready);
  }
  EXPECT_LE(encode(envelope).size(), 100U * 4 + 16);
}

}  // namespace
}  // namespace horon::core
