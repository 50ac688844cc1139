// The flags of a round through the sums of all dtypes, for many ranks.
#include "horon/torch_bindings/gradients/round_flags.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "horon/ops/host/host_kernels.h"
#include "horon/torch_bindings/gradients/settings.h"

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

// A flag of one rank, beside a flag of all ranks, survives the rounding of its host's sum and that
// of the result, for as many ranks as may send flags in blocks of int8
// (GradientSettings::has_round_flags()).
TEST(RoundFlags, SurviveBlocksOfInt8) {
  constexpr int kRanks = GradientSettings::kRanksMaxOfInt8;
  const auto rounded = [](std::vector<float> values) {
    const auto count = static_cast<int64_t>(values.size());
    std::vector<std::byte> blocks(static_cast<size_t>(ops::bytes_of_int8_blocks(count)));
    ops::narrow_to_int8_blocks(values.data(), blocks.data(), count, 1.0);
    ops::widen_int8_blocks(blocks.data(), values.data(), count, 1.0);
    return values;
  };
  for (int own = 1; own <= kRanks; ++own) {       // ranks of the host with the one that raises it
    for (int each = 1; each <= kRanks; ++each) {  // of the others
      std::vector<float> sums = {0, 0};
      for (int left = kRanks, ranks = own; left > 0; left -= ranks, ranks = each) {
        ranks = std::min(ranks, left);
        const float raised = left == kRanks ? 256.0F : 0.0F;
        const std::vector<float> of_host = rounded({raised, 256.0F * static_cast<float>(ranks)});
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += of_host[i];
      }
      for (float& sum : sums) sum /= kRanks;
      ASSERT_GT(rounded(sums)[0], 0.0F) << own << " and " << each;
    }
  }
}

}  // namespace
}  // namespace horon::round_flags_test
