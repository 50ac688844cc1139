// InfoNCE over uneven parts against one process with all samples.
#include "horon/torch_bindings/modules/contrastive_loss.h"

#include <chrono>
#include <thread>

#include <ATen/core/grad_mode.h>

#include "horon/ops/session/running_job.h"
#include "horon/tests/torch_bindings/modules/modules_support.h"
#include "horon/torch_bindings/collectives/collectives.h"

namespace horon::contrastive_loss_test {
namespace {

using namespace testing_support;

class InfoNce : public testing::Test {
 protected:
  void TearDown() override { barrier(); }
};

// As the papers write it, in one process.
at::Tensor one_process(at::Tensor queries, at::Tensor keys, const at::Tensor& scale,
                       const InfoNceOptions& options) {
  if (options.normalize) {
    queries = queries / queries.norm(2, 1, true);
    keys = keys / keys.norm(2, 1, true);
  }
  const at::Tensor logits = queries.mm(keys.t()) * scale;
  const at::Tensor loss = -logits.log_softmax(1).diagonal().mean();
  if (!options.symmetric) return loss;
  return (loss - logits.t().log_softmax(1).diagonal().mean()) / 2;
}

void expect_equal_to_one_process(InfoNceOptions options, at::ScalarType type, double tolerance) {
  const at::Tensor queries = numbers({all_samples(), 4}, 0.1, type).requires_grad_(true);
  const at::Tensor keys = numbers({all_samples(), 4}, 0.2, type).requires_grad_(true);
  const at::Tensor scale = at::full({}, 1 / options.temperature, type).requires_grad_(true);
  const at::Tensor want = one_process(queries, keys, scale, options);
  want.backward();

  const at::Tensor my_queries = my_part(queries).detach().requires_grad_(true);
  const at::Tensor my_keys = my_part(keys).detach().requires_grad_(true);
  const at::Tensor my_scale = scale.detach().clone().requires_grad_(true);
  const bool learned = options.temperature == 0.5;
  if (learned) options.scale = my_scale;
  const at::Tensor got = info_nce(my_queries, my_keys, options);
  got.backward();
  expect_near(allreduce(got.detach()), want.detach(), tolerance);
  // The mean over ranks is the loss of all samples, so a rank's own gradients are size() times
  // larger.
  expect_near(my_queries.grad() / size(), my_part(queries.grad()), tolerance);
  expect_near(my_keys.grad() / size(), my_part(keys.grad()), tolerance);
  if (learned) expect_near(allreduce(my_scale.grad()), scale.grad(), tolerance);
}

TEST_F(InfoNce, EqualsOneProcessWithAllSamples) {
  for (const bool symmetric : {true, false}) {
    for (const bool normalize : {true, false}) {
      for (const double temperature : {0.07, 0.5}) {
        const InfoNceOptions options{
            .temperature = temperature, .symmetric = symmetric, .normalize = normalize};
        expect_equal_to_one_process(options, at::kDouble, 1e-11);
        expect_equal_to_one_process(options, at::kFloat, 1e-4);
      }
    }
  }
}

TEST_F(InfoNce, SixteenBitEmbeddingsGiveALossInFloat32) {
  const at::Tensor rows = numbers({samples_of(rank()), 4}, rank(), at::kBFloat16);
  const at::Tensor x = rows.detach().requires_grad_(true);
  const at::Tensor loss = info_nce(x, rows);
  loss.backward();
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
}

// In float16 1e-12 is 0, and would not keep a row of zeros from 0 / 0.
TEST_F(InfoNce, RowsOfZerosInFloat16) {
  at::Tensor rows = numbers({3, 4}, rank(), at::kHalf);
  if (rank() == size() - 1) rows[1].zero_();
  const at::Tensor x = rows.detach().requires_grad_(true);
  const at::Tensor loss = info_nce(x, rows);
  loss.backward();
  EXPECT_TRUE(std::isfinite(loss.item<float>()));
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>()) << x.grad();
}

TEST_F(InfoNce, NoSamplesOnAnyRank) {
  const at::Tensor x = at::zeros({0, 4}).requires_grad_(true);
  const at::Tensor loss = info_nce(x, x);
  loss.backward();
  EXPECT_EQ(loss.item<float>(), 0);
  EXPECT_EQ(x.grad().sizes(), at::IntArrayRef({0, 4}));
}

TEST_F(InfoNce, ProcessSetsAndNoGradient) {
  const ProcessSet own = split_process_set(rank());
  const at::Tensor x = numbers({5, 4}, rank());
  const at::NoGradGuard no_grad;
  const InfoNceOptions options{.process_set = own};
  expect_near(info_nce(x, x * x, options),
              one_process(x, x * x, at::full({}, 1 / 0.07, at::kDouble), options), 1e-12);
}

TEST_F(InfoNce, WrongArgumentsOfOneRankAreToldToAll) {
  const at::Tensor x = at::ones({2, 3});
  const at::Tensor y = rank() == size() - 1 ? at::ones({3, 3}) : x;
  EXPECT_THAT(
      error_of([&] { info_nce(x, y, {.name = "pairs"}); }),
      AllOf(StartsWith("invalid argument"), HasSubstr("info_nce \"pairs\""), HasSubstr("[3, 3]")));
  barrier();
  EXPECT_THAT(error_of([&] { info_nce(x, x, {.temperature = 0}); }), HasSubstr("temperature"));
  barrier();
  EXPECT_THAT(error_of([&] {
                info_nce(x, at::ones({2, 3}, at::kLong));
              }),
              HasSubstr("same floating type"));
}

// A call that another rank has refused leaves nothing open, which would be named as stalled for
// ever.
TEST_F(InfoNce, ARefusalOfOneRankLeavesNothingOpen) {
  if (size() == 1) GTEST_SKIP() << "needs another rank";
  const at::Tensor x = at::ones({2, 3});
  const at::Tensor y = rank() == size() - 1 ? at::ones({3, 3}) : x;
  EXPECT_THAT(error_of([&] { info_nce(x, y, {.name = "pairs"}); }), HasSubstr("[3, 3]"));
  barrier();
  // Other ranks would still wait for those of the call before.
  const Handle again = allgather_async(at::ones({1}), {.name = "pairs.rows"});
  EXPECT_EQ(again.wait(std::chrono::seconds(60)).size(0), size());
}

// An error may come while the call's second collective is still under way.
TEST_F(InfoNce, NamesAreFreeAfterAnError) {
  if (size() == 1) GTEST_SKIP() << "needs another rank";
  if (rank() == size() - 1) {
    ops::runtime().refuse("slow", "refused", 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ops::runtime().refuse("slow.rows", "refused", 0);
  } else {
    const at::Tensor x = at::ones({2, 3});
    EXPECT_THAT(error_of([&] { info_nce(x, x, {.name = "slow"}); }), HasSubstr("refused"));
  }
  const Handle again = allgather_async(at::ones({1}), {.name = "slow.rows"});
  EXPECT_EQ(again.wait(std::chrono::seconds(60)).size(0), size());
}

TEST_F(InfoNce, OtherOptionsOnARankAreAMismatch) {
  if (size() == 1) GTEST_SKIP() << "needs another rank";
  const bool last = rank() == size() - 1;
  const at::Tensor x = numbers({2, 3}, 0.3, at::kDouble);
  EXPECT_THAT(error_of([&] { info_nce(x, x, {.name = "t", .temperature = last ? 0.5 : 0.25}); }),
              AllOf(StartsWith("mismatch: info_nce \"t\""), HasSubstr("temperature 0.25"),
                    HasSubstr("temperature 0.5, normalize on rank")));
  EXPECT_THAT(error_of([&] { info_nce(x, x, {.name = "n", .normalize = last}); }),
              HasSubstr("no normalize on rank"));
  // Two directions of three numbers are as wide as one of six.
  const at::Tensor rows = last ? x : numbers({2, 6}, 0.3, at::kDouble);
  EXPECT_THAT(
      error_of([&] { info_nce(rows, rows, {.name = "s", .symmetric = last}); }),
      AllOf(StartsWith("mismatch: info_nce \"s\""), HasSubstr("; symmetric, temperature 0.07")));
}

}  // namespace
}  // namespace horon::contrastive_loss_test
