// Sets that are too large for an error message to show in full.
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/ops/session/process_sets.h"
#include "horon/ops/session/session.h"
#include "horon/tests/support/mpi_main.h"

namespace horon {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

TEST(ExactList, TellsEveryRank) {
  EXPECT_EQ(ops::exact_list({0, 1, 5}), "0, 1 and 5");
  EXPECT_EQ(ops::exact_list(first_ranks(100)), "0 to 99");
  std::vector<int> ranks = first_ranks(20);
  ranks.insert(ranks.end(), {22, 24, 26, 28, 40, 41, 50});
  EXPECT_EQ(ops::exact_list(ranks), "0 to 19, 22 to 28 by 2, 40, 41, 50");
}

TEST(ExactList, DiffersWhereTheListsDo) {
  std::vector<int> ranks;  // in no order that has a name
  for (int i = 0; i < 3000; ++i) ranks.push_back(i * i);
  const std::string text = ops::exact_list(ranks);
  EXPECT_LT(text.size(), 1200U);
  ++ranks.back();
  EXPECT_NE(ops::exact_list(ranks), text);
}

TEST(LargeProcessSet, OneOtherMemberIsAMismatch) {
  ASSERT_EQ(test_size(), 18);
  init_session();
  std::vector<int> ranks = first_ranks(17);
  if (test_rank() == 3) ranks.back() = 17;
  try {
    (void)add_process_set(ranks);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Mismatch);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("0 to 16"), HasSubstr("0 to 15, 17 on rank 3")));
    EXPECT_THAT(error.what(), AllOf(HasSubstr("Every rank must call add_process_set() with the same"
                                              " arguments, in the same order."),
                                    Not(HasSubstr("tensor"))));
  }
  const ProcessSet most = add_process_set(first_ranks(17));
  EXPECT_EQ(most.size(), 17);
  shutdown();
}

}  // namespace
}  // namespace horon
