// The flags of a round through the sums of all dtypes, for many ranks.
#include "horon/torch_bindings/gradients/round_flags.h"

#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace horon::round_flags_test {
namespace {

using namespace torch_detail;

constexpr auto kElements = static_cast<int64_t>(RoundFlags::kCount);
const std::vector<at::ScalarType> kDtypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

// What a rank sends.
at::Tensor sent(const RoundFlags& flags, at::ScalarType dtype) {
  at::Tensor elements = at::full({kElements}, 7, dtype);
  flags.write(elements.mutable_data_ptr(), dtype);
  return elements;
}

RoundFlags heard(const at::Tensor& sum, at::ScalarType dtype) {
  const at::Tensor elements = sum.to(dtype);
  RoundFlags flags;
  flags.add(elements.const_data_ptr(), dtype);
  return flags;
}

RoundFlags saying(bool first, bool otherwise, uint64_t fingerprint) {
  RoundFlags flags;
  flags.say(first, otherwise, fingerprint);
  return flags;
}

TEST(RoundFlags, OneRankAmongManyIsHeard) {
  for (const at::ScalarType dtype : kDtypes) {
    for (const double ranks : {1.0, 3.0, 1e3, 1e5}) {
      for (const double scale : {1.0, 1 / ranks}) {
        const auto sum_with = [&](const RoundFlags& one, const RoundFlags& others) {
          const at::Tensor all = sent(others, dtype).to(at::kDouble) * (ranks - 1);
          return heard((all + sent(one, dtype).to(at::kDouble)) * scale, dtype);
        };
        const RoundFlags usual = saying(true, false, 0x1234);
        EXPECT_TRUE(sum_with(usual, usual).alike());
        EXPECT_FALSE(sum_with(usual, usual).asked());
        RoundFlags asking = usual;
        asking.ask();
        EXPECT_TRUE(sum_with(asking, usual).asked());
        EXPECT_TRUE(sum_with(asking, usual).alike());
        if (ranks == 1) continue;
        EXPECT_FALSE(sum_with(saying(false, false, 0x1234), usual).alike());
        EXPECT_FALSE(sum_with(saying(true, true, 0x1234), usual).alike());
        for (int bit = 0; bit < 16; ++bit) {
          EXPECT_FALSE(sum_with(saying(true, false, 0x1234 ^ (1U << bit)), usual).alike());
        }
        // Ranks that have joined say nothing.
        EXPECT_TRUE(sum_with(usual, RoundFlags()).alike());
      }
    }
  }
}

TEST(RoundFlags, BucketsThatSayNothingAreNotAlike) {
  EXPECT_FALSE(RoundFlags().alike());
  RoundFlags asking;
  asking.ask();
  EXPECT_FALSE(asking.alike());
  EXPECT_TRUE(asking.asked());
}

}  // namespace
}  // namespace horon::round_flags_test
