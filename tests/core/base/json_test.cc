#include "horon/core/base/json.h"

#include <gtest/gtest.h>

namespace horon::core {
namespace {

TEST(JsonString, KeepsPlainTextAndUtf8) {
  EXPECT_EQ(json_string(""), R"("")");
  EXPECT_EQ(json_string("conv1.weight"), R"("conv1.weight")");
  EXPECT_EQ(json_string("Ünïcødé 环 🎡"), "\"Ünïcødé 环 🎡\"");
}

TEST(JsonString, EscapesWhatJsonForbids) {
  EXPECT_EQ(json_string("a\"b\\c"), R"("a\"b\\c")");
  EXPECT_EQ(json_string("\n\t\x01"), R"("\u000a\u0009\u0001")");
  EXPECT_EQ(json_string(std::string_view("\0", 1)), R"("\u0000")");
}

TEST(JsonString, ShowsBadUtf8AsLatin1) {
  EXPECT_EQ(json_string("\xff"), R"("\u00ff")");
  EXPECT_EQ(json_string("\xc3"), R"("\u00c3")");            // cut off
  EXPECT_EQ(json_string("\xc3(x"), R"("\u00c3(x")");        // no second byte
  EXPECT_EQ(json_string("\xc0\xaf"), R"("\u00c0\u00af")");  // overlong
  EXPECT_EQ(json_string("\xe0\x80\x80"), R"("\u00e0\u0080\u0080")");
  EXPECT_EQ(json_string("\xed\xa0\x80"), R"("\u00ed\u00a0\u0080")");  // half of a pair
  EXPECT_EQ(json_string("\xf4\x90\x80\x80"), R"("\u00f4\u0090\u0080\u0080")");
}

TEST(Utf8, IsToldFromOtherBytes) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("Ünïcødé 环 🎡"));
  EXPECT_FALSE(is_utf8("a\xff"));
  EXPECT_FALSE(is_utf8("\xed\xa0\x80"));
}

}  // namespace
}  // namespace horon::core
