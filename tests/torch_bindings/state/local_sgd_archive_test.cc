// Local SGD: what a state that is loaded stands for, beside LocalSgd.GoesOnFromAnArchive.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/tests/torch_bindings/archives.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/horon.h"

namespace horon::local_sgd_archive_test {
namespace {

using namespace testing_support;

at::Tensor parameter() { return at::full({4, 3}, 0.5, at::kDouble).requires_grad_(true); }

TEST(LocalSgdArchive, IsOfTheStepsBetweenTwoAverages) {
  const at::Tensor x = parameter();
  LocalSgd local({{"x", x}}, {.steps = 3}), again({{"x", x}}, {.steps = 3});
  for (int step = 0; step < 2; ++step) EXPECT_FALSE(local.step());
  hand_over(local, again);
  EXPECT_TRUE(again.step());
}

TEST(LocalSgdArchive, OfAnotherBeginningOnOneRankIsFoundOut) {
  if (size() == 1) return;
  const at::Tensor x = parameter();
  LocalSgd local({{"x", x}}, {.outer_lr = 0.5}), other({{"x", x + 1}}, {.outer_lr = 0.5});
  local.average();  // compares the beginnings
  if (rank() == 0) hand_over(other, local);
  EXPECT_THAT(error_of([&] { local.average(); }), testing::HasSubstr("\"x\""));
}

}  // namespace
}  // namespace horon::local_sgd_archive_test
