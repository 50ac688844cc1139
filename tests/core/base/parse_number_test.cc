#include "horon/core/base/parse_number.h"

#include <gtest/gtest.h>

namespace horon::core {
namespace {

TEST(ParseNumber, TakesTheWholeTextOrNothing) {
  EXPECT_EQ(parse_number("10"), 10);
  EXPECT_EQ(parse_number("-0.5"), -0.5);
  EXPECT_EQ(parse_number("1e3"), 1000);
  for (const char* text : {"", " 1", "1 ", "1x", "0x10", "+1", "1,5", "e3", "1e999"}) {
    EXPECT_EQ(parse_number(text), std::nullopt) << text;
  }
}

TEST(ParseNumber, BytesNeedAKnownSuffix) {
  EXPECT_EQ(parse_bytes("1.5KiB"), 1536);
  EXPECT_EQ(parse_bytes("9007199254740992"), 9007199254740992.0);
  for (const char* text : {"", "KiB", "1kib", "1 KiB", "1KB", "1TiB", "1KiBB"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

TEST(ParseNumber, TextGivesTheSameNumberAgain) {
  EXPECT_EQ(number_text(10), "10");
  EXPECT_EQ(number_text(100000), "100000");
  EXPECT_EQ(number_text(0.25), "0.25");
  for (const double value : {0.1, 1e-9, 1.0 / 3, 123456789.123, 1e300, -7.5}) {
    EXPECT_EQ(parse_number(number_text(value)), value);
  }
}

}  // namespace
}  // namespace horon::core
