// What the lowest rank of a process set does alone.
#include <numeric>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/guards/rank_zero.h"

namespace horon::rank_zero_of_sets_test {
namespace {

using testing::HasSubstr;
using testing_support::error_of;

// The ranks from 1 on: rank 0 is not among them.
TEST(RankZero, OfAProcessSetIsItsLowestRank) {
  if (size() == 1) return;
  std::vector<int> others(static_cast<size_t>(size()) - 1);
  std::iota(others.begin(), others.end(), 1);
  const ProcessSet set = add_process_set(others);
  EXPECT_EQ(is_rank_zero(set), rank() == 1);
  testing::internal::CaptureStdout();
  print0(set, "loss ", 0.5);
  print0(set);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), rank() == 1 ? "loss 0.5\n\n" : "");
  int ran = 0;
  rank_zero_only(
      [&] {
        ++ran;
        EXPECT_THAT(error_of([&] { allreduce(at::ones({3}), {.process_set = set}); }),
                    HasSubstr("code that the lowest rank of a process set runs alone"));
      },
      set);
  EXPECT_EQ(ran, rank() == 1 ? 1 : 0);
  {
    const RankZeroScope scope(set);
    EXPECT_EQ(static_cast<bool>(scope), rank() == 1);
    EXPECT_THAT(error_of([] { barrier(); }), HasSubstr("alone"));  // on every rank
  }
  if (set.includes_me()) {
    const at::Tensor sum = allreduce(at::ones({3}), {.op = ReduceOp::Sum, .process_set = set});
    EXPECT_EQ(sum[0].item<int>(), size() - 1);
  }
  remove_process_set(set);
  EXPECT_EQ(is_rank_zero({}), rank() == 0);
  barrier();
}

}  // namespace
}  // namespace horon::rank_zero_of_sets_test
