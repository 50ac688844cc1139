// Local SGD: what a state that is loaded stands for, beside LocalSgd.GoesOnFromAnArchive.
#include <sstream>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/horon.h"

namespace horon::local_sgd_archive_test {
namespace {

using namespace testing_support;

at::Tensor parameter() { return at::full({4, 3}, 0.5, at::kDouble).requires_grad_(true); }

void load_from(const LocalSgd& saved, LocalSgd& into) {
  torch::serialize::OutputArchive out;
  saved.save(out);
  std::stringstream stream;
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  into.load(in);
}

TEST(LocalSgdArchive, IsOfTheStepsBetweenTwoAverages) {
  const at::Tensor x = parameter();
  LocalSgd local({{"x", x}}, {.steps = 3}), again({{"x", x}}, {.steps = 3});
  for (int step = 0; step < 2; ++step) EXPECT_FALSE(local.step());
  load_from(local, again);
  EXPECT_TRUE(again.step());
}

TEST(LocalSgdArchive, OfAnotherBeginningOnOneRankIsFoundOut) {
  if (size() == 1) return;
  const at::Tensor x = parameter();
  LocalSgd local({{"x", x}}, {.outer_lr = 0.5}), other({{"x", x + 1}}, {.outer_lr = 0.5});
  local.average();  // compares the beginnings
  if (rank() == 0) load_from(other, local);
  EXPECT_THAT(error_of([&] { local.average(); }), testing::HasSubstr("\"x\""));
}

}  // namespace
}  // namespace horon::local_sgd_archive_test
