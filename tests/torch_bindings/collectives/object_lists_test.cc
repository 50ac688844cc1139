// Lists of values from rank to rank.
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/objects.h"

namespace horon::object_lists_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::error_of;

using Numbers = std::vector<double>;
using Texts = std::vector<std::string>;

// Of rank r: its length differs between ranks, 0 on rank 0.
Numbers numbers_of(int r) {
  Numbers numbers;
  for (int i = 0; i < r; ++i) numbers.push_back(10 * r + i);
  return numbers;
}
Texts texts_of(int r) {
  Texts texts;
  for (int i = 0; i < r; ++i) texts.emplace_back(static_cast<size_t>(i), 'a');  // "", "a", "aa"
  return texts;
}

TEST(ObjectLists, OfNumbersAndTextsComeAsTheyAre) {
  for (int root = 0; root < size(); ++root) {
    EXPECT_EQ(broadcast_object(numbers_of(rank()), {.root = root}), numbers_of(root));
    EXPECT_EQ(broadcast_object(texts_of(rank()), {.root = root}), texts_of(root));
    const auto all = gather_object(texts_of(rank()), {.root = root});
    for (int r = 0; r < static_cast<int>(all.size()); ++r) EXPECT_EQ(all[r], texts_of(r));
    EXPECT_EQ(all.size(), rank() == root ? static_cast<size_t>(size()) : 0U);
  }
  const std::vector<Numbers> all = allgather_object(numbers_of(rank()));
  ASSERT_EQ(all.size(), static_cast<size_t>(size()));
  for (int r = 0; r < size(); ++r) EXPECT_EQ(all[r], numbers_of(r));
  const std::vector<bool> flags = {true, false, true};
  EXPECT_EQ(broadcast_object(rank() == 0 ? flags : std::vector<bool>()), flags);
}

TEST(ObjectLists, MayBeNested) {
  using Table = std::vector<std::vector<int64_t>>;
  const Table table = {{1, 2}, {}, {3}};
  EXPECT_EQ(broadcast_object(rank() == 0 ? table : Table()), table);
  const std::vector<std::vector<at::Tensor>> lists = {{}, {at::full({2}, 7.0), at::zeros({0})}};
  const auto got = broadcast_object(rank() == 0 ? lists : std::vector<std::vector<at::Tensor>>());
  ASSERT_EQ(got.size(), 2U);
  EXPECT_THAT(got[0], IsEmpty());
  ASSERT_EQ(got[1].size(), 2U);
  EXPECT_TRUE(at::equal(got[1][0], lists[1][0]));
  EXPECT_THAT(got[1][1].sizes(), ElementsAre(0));
}

TEST(ObjectLists, OfAnotherTypeAreAnError) {
  if (size() == 1) GTEST_SKIP() << "for two ranks or more";
  const bool is_root = rank() == 0;
  const auto expect_unlike = [&](const auto& call) {
    if (is_root) {
      EXPECT_EQ(error_of(call), "no error");
    } else {
      EXPECT_THAT(error_of(call), HasSubstr("\"list\""));
    }
  };
  expect_unlike([&] {
    if (is_root) {
      (void)broadcast_object(Texts{"abc"}, {.name = "list"});
    } else {
      (void)broadcast_object(Numbers(), {.name = "list"});
    }
  });
  expect_unlike([&] {
    if (is_root) {
      (void)broadcast_object(std::string(20, 'x'), {.name = "list"});
    } else {
      (void)broadcast_object(Texts(), {.name = "list"});
    }
  });
  EXPECT_EQ(broadcast_object(Texts{"all", "is", "well"}).size(), 3U);
}

}  // namespace
}  // namespace horon::object_lists_test
