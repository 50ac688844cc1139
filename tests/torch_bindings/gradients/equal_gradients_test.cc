// Ranks that train with the same data are told so, once.
#include <functional>
#include <limits>
#include <string>

#include "horon/tests/torch_bindings/gradients/backward_support.h"

namespace horon::equal_gradients_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace testing_support;

// What rank 0 logs while the others and it run so many backward passes, whose gradients are as
// `factor` says for each pass.
std::string log_of(int passes, const std::function<double(int pass)>& factor,
                   const GradientReducerOptions& options = alone()) {
  const at::Tensor w = leaf({3}), b = leaf({2}, at::kDouble);
  GradientReducer reducer({{"w", w}, {"b", b}}, options);
  testing::internal::CaptureStderr();
  for (int pass = 1; pass <= passes; ++pass) {
    w.mutable_grad().reset();
    b.mutable_grad().reset();
    (weighted(w, factor(pass)) + weighted(b, 1)).backward();
    reducer.synchronize();
  }
  return testing::internal::GetCapturedStderr();
}

size_t count(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

constexpr const char* kWarning = "had the same gradients";

TEST(EqualGradients, AreToldOnce) {
  for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
    GradientReducerOptions options = alone();
    options.wait_in = wait_in;
    const std::string log = log_of(
        8, [](int pass) { return pass; }, options);
    EXPECT_EQ(count(log, kWarning), rank() == 0 && size() > 1 ? 1U : 0U) << log;
    if (rank() != 0 || size() == 1) continue;
    const std::string ranks = size() == 2 ? "both ranks" : "all 3 ranks";
    EXPECT_THAT(log, AllOf(HasSubstr(ranks), HasSubstr("DistributedRandomSampler")));
  }
}

TEST(EqualGradients, AreNotToldWhereARankHasOthers) {
  const auto of_last = [](int) { return rank() == size() - 1 ? 2.0 : 1.0; };
  EXPECT_EQ(count(log_of(5, of_last), kWarning), 0U);
}

// A program may begin with constant data.
TEST(EqualGradients, AreNotToldAfterOneOrTwoRounds) {
  EXPECT_EQ(count(log_of(2, [](int) { return 1.0; }), kWarning), 0U);
  const auto alike_at_first = [](int pass) { return pass < 3 ? 1.0 : 1.0 + rank(); };
  EXPECT_EQ(count(log_of(6, alike_at_first), kWarning), 0U);
}

// A network's first gradients may be 0, and those of a scaled loss not finite.
TEST(EqualGradients, OfZerosOrNoFiniteNumbersSayNothing) {
  for (const double value : {0.0, std::numeric_limits<double>::infinity()}) {
    const at::Tensor w = leaf({3});
    GradientReducer reducer({{"w", w}}, alone());
    testing::internal::CaptureStderr();
    for (int pass = 0; pass < 5; ++pass) {
      w.mutable_grad().reset();
      weighted(w, value).backward();
      reducer.synchronize();
    }
    EXPECT_EQ(count(testing::internal::GetCapturedStderr(), kWarning), 0U) << value;
  }
}

}  // namespace
}  // namespace horon::equal_gradients_test
