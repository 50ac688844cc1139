#include "horon/core/base/text.h"

#include <array>

#include <gtest/gtest.h>

#include "horon/tests/support/grouping_locale.h"

namespace horon::core {
namespace {

TEST(Text, NumbersLookTheSameInEveryLocale) {
  const test::GroupingLocale german;
  EXPECT_EQ(concat("step ", 1234567, ": ", 0.5), "step 1234567: 0.5");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  const std::array<int64_t, 2> shape{4096, 25000};
  EXPECT_EQ(shape_text(shape), "[4096, 25000]");
  const std::array<int, 2> ranks{7, 1024};
  EXPECT_EQ(list_ranks(ranks), "7 and 1024");
}

TEST(Text, AFieldHasNoTabOrNewline) {
  EXPECT_EQ(one_field("a\tb\n\nc d"), "a b  c d");
  EXPECT_EQ(one_field(""), "");
}

}  // namespace
}  // namespace horon::core
