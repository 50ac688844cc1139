#include "horon/core/base/version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace horon {
namespace {

TEST(Version, IsNumbersAndPerhapsACommit) {
  EXPECT_THAT(std::string(version()),
              testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+(\\+[0-9a-f]+)?"));
}

}  // namespace
}  // namespace horon
