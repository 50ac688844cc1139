// Collectives on tensors of GPUs: LibTorch's device "cuda" made of threads, and Horon's own classes
// for CUDA and NCCL on it.
#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/collectives/collective_values.h"
#include "horon/tests/torch_bindings/host_gpu/late_tensors.h"
#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/finite_check.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"
#include "horon/torch_bindings/logging/logger.h"
#include "horon/torch_bindings/metrics/auroc.h"
#include "horon/torch_bindings/metrics/classification.h"
#include "horon/torch_bindings/metrics/mean.h"
#include "horon/torch_bindings/metrics/metric_collection.h"
#include "horon/torch_bindings/metrics/perplexity.h"
#include "horon/torch_bindings/modules/activation_checkpoint.h"
#include "horon/torch_bindings/modules/contrastive_loss.h"
#include "horon/torch_bindings/modules/sync_batch_norm.h"
#include "horon/torch_bindings/state/broadcast_state.h"
#include "horon/torch_bindings/state/replicas.h"

namespace horon::gpu_collectives_test {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::expect_equal;
using testing_support::host_waits;
using testing_support::late;
using testing_support::sum_of_all;
using testing_support::values_of;

at::Tensor all_rows(const std::function<at::Tensor(int)>& of_rank) {
  std::vector<at::Tensor> rows;
  for (int r = 0; r < size(); ++r) rows.push_back(of_rank(r));
  return at::cat(rows);
}

TEST(GpuCollectives, AllreduceWaitsForTheProducerAndTheConsumerWaitsForIt) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,
                                    at::kInt, at::kByte, at::kComplexFloat}) {
    SCOPED_TRACE(type);
    const at::Tensor mine = late(values_of({5, 7}, type, rank()));
    const at::Tensor sum = allreduce(mine, {.op = ReduceOp::Sum});
    EXPECT_EQ(sum.device(), device());
    expect_equal(sum.cpu(), sum_of_all({5, 7}, type));
    expect_equal(mine.cpu(), values_of({5, 7}, type, rank()));
  }
  const at::Tensor mine = late(values_of({300}, at::kFloat, rank()));
  allreduce_(mine);
  expect_equal(mine.cpu(), sum_of_all({300}, at::kFloat) / size(), 1e-6);
}

TEST(GpuCollectives, TensorsThatAreNotRowMajor) {
  at::Tensor mine = late(values_of({6, 4}, at::kFloat, rank()));
  const at::Tensor turned = mine.t();
  const at::Tensor sum = allreduce(turned, {.op = ReduceOp::Sum});
  expect_equal(sum.cpu(), sum_of_all({6, 4}, at::kFloat).t().contiguous());
  allreduce_(turned, {.op = ReduceOp::Sum});
  expect_equal(mine.cpu(), sum_of_all({6, 4}, at::kFloat));
}

TEST(GpuCollectives, KindsThatMoveRows) {
  const auto rows_of = [](int r) { return values_of({r + 1, 3}, at::kFloat, r); };
  expect_equal(allgather(late(rows_of(rank()))).cpu(), all_rows(rows_of));

  const std::vector<int64_t> shape{2L * size() + 1, 2};
  const at::Tensor sum = sum_of_all(shape, at::kFloat);
  const at::Tensor share =
      reducescatter(late(values_of(shape, at::kFloat, rank())), {.op = ReduceOp::Sum});
  const int64_t first = rank() == 0 ? 0 : 2L * rank() + 1;
  expect_equal(share.cpu(), sum.slice(0, first, first + (rank() == 0 ? 3 : 2)));

  const auto to_all = [](int r) { return values_of({2L * size(), 3}, at::kFloat, r); };
  const AlltoallResult exchanged = alltoall(late(to_all(rank())));
  expect_equal(exchanged.tensor.cpu(),
               all_rows([&](int r) { return to_all(r).slice(0, 2 * rank(), 2 * rank() + 2); }));

  const int root = size() - 1;
  const at::Tensor gathered = gather(late(rows_of(rank())), {.root = root});
  if (rank() == root) expect_equal(gathered.cpu(), all_rows(rows_of));
  const at::Tensor scattered = scatter(late(to_all(rank())), {.root = root});
  expect_equal(scattered.cpu(), to_all(root).slice(0, 2 * rank(), 2 * rank() + 2));
  EXPECT_EQ(scattered.device(), device());
}

TEST(GpuCollectives, BroadcastGroupsAndCompression) {
  const auto of_rank = [](int r) { return values_of({17}, at::kDouble, r); };
  expect_equal(broadcast(late(of_rank(rank())), {.root = size() - 1}).cpu(), of_rank(size() - 1));
  std::vector<at::Tensor> group;
  for (const int64_t extent : {3, 1000, 0, 40}) {
    group.push_back(late(values_of({extent}, at::kFloat, rank())));
  }
  const std::vector<at::Tensor> sums = grouped_allreduce(group, {.op = ReduceOp::Sum});
  for (size_t i = 0; i < group.size(); ++i) {
    expect_equal(sums[i].cpu(), sum_of_all(group[i].sizes().vec(), at::kFloat));
  }
  const std::vector<at::Tensor> rows = grouped_allgather({group[0], group[3]});
  expect_equal(rows[1].cpu(), all_rows([](int r) { return values_of({40}, at::kFloat, r); }));
  const at::Tensor narrow =
      allreduce(group[1], {.op = ReduceOp::Sum, .compression = Compression::BFloat16});
  expect_equal(narrow.cpu(), sum_of_all({1000}, at::kFloat));
}

TEST(GpuCollectives, NothingWaitsOnTheHost) {
  const at::Tensor x = at::ones({5000}).to(device());
  const at::Tensor y = at::ones({7}).to(device());
  const auto step = [&](int number) {
    x.fill_(number);
    y.fill_(number);
    const Handle first = allreduce_async_(x, {.name = "x", .op = ReduceOp::Sum});
    const Handle rows = allgather_async(y, {.name = "y"});
    first.wait().mul_(2);
    return rows.wait();
  };
  (void)step(0);
  const int before = host_waits();
  at::Tensor rows;
  for (int number = 1; number <= 20; ++number) rows = step(number);
  EXPECT_EQ(host_waits(), before);
  EXPECT_TRUE(at::equal(x.cpu(), at::full({5000}, 40.0F * static_cast<float>(size()))));
  EXPECT_TRUE(at::equal(rows.cpu(), at::full({7L * size()}, 20.0F)));
}

TEST(GpuCollectives, ResultsGoToTheStreamThatTakesThem) {
  const c10::Stream writes = test::new_stream(device().index());
  const c10::Stream reads = test::new_stream(device().index());
  for (int number = 0; number < 10; ++number) {
    Handle sum, rows;
    {
      const c10::StreamGuard guard(writes);
      sum = allreduce_async(late(values_of({900}, at::kFloat, rank())), {.op = ReduceOp::Sum});
      rows = allgather_async(late(values_of({3}, at::kFloat, rank())));
    }  // nobody but the collectives holds their inputs
    const c10::StreamGuard guard(reads);
    expect_equal(sum.wait().cpu(), sum_of_all({900}, at::kFloat));
    expect_equal(rows.wait().cpu(), all_rows([](int r) { return values_of({3}, at::kFloat, r); }));
  }
}

// The second stream reads when nobody holds the tensor any more. The first wait() widens 16 bits.
TEST(GpuCollectives, TwoStreamsMayTakeAResult) {
  const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(40)); };
  const c10::Stream ours = test::new_stream(device().index());
  const c10::Stream other = test::new_stream(device().index());
  for (const bool narrow : {false, true, false, true, false, true}) {
    c10::StreamGuard guard(ours);
    const at::Tensor copy = at::empty({900}, device());
    const at::Tensor mine = values_of({900}, at::kFloat, rank());
    Handle sum =
        narrow ? reducescatter_async(late(mine.repeat({size()})),
                                     {.op = ReduceOp::Sum, .compression = Compression::BFloat16})
               : allreduce_async(late(mine), {.op = ReduceOp::Sum});
    guard.reset_stream(narrow ? other : ours);
    (void)sum.wait();
    guard.reset_stream(narrow ? ours : other);
    test::enqueue_in_current_stream(sleep, device().index());
    copy.copy_(sum.wait());
    sum = {};
    for (int i = 0; i < 5; ++i) {  // the runtime lets go of what has ended
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      (void)allreduce(at::ones({1}));
    }
    expect_equal(copy.cpu(), sum_of_all({900}, at::kFloat));
  }
}

// The copy into the tensor still waits in its stream when nobody holds the collective any more.
TEST(GpuCollectives, WhatIsCopiedInAnotherStreamLivesUntilThen) {
  const c10::Stream writes = test::new_stream(device().index());
  const c10::Stream reads = test::new_stream(device().index());
  const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(40)); };
  for (int number = 0; number < 3; ++number) {
    const at::Tensor mine = late(values_of({6, 4}, at::kFloat, rank()));
    test::drain_current_stream(device().index());
    c10::StreamGuard guard(writes);
    Handle sum = allreduce_async_(mine.t(), {.op = ReduceOp::Sum});
    guard.reset_stream(reads);
    test::enqueue_in_current_stream(sleep, device().index());
    (void)sum.wait();
    sum = {};
    (void)allreduce(at::ones({1}));  // the runtime lets go of what has ended
    expect_equal(mine.cpu(), sum_of_all({6, 4}, at::kFloat));
  }
}

at::Tensor sum_of_late(float value) {
  return allreduce(late(at::full({2000}, value)), {.op = ReduceOp::Sum});
}

bool is_sum_of(float value, const at::Tensor& sum) {
  return at::equal(sum.cpu(), at::full({2000}, value * static_cast<float>(size())));
}

// On a busy machine the streams may happen to run in order all the same, so it is tried again with
// the late ones later; all ranks try it equally often.
TEST(GpuCollectives, AMissingOrderIsSeen) {
  if (!testing_support::device_reduces()) GTEST_SKIP() << "no order on the device";
  float value = 2;  // another one each time: memory may hold what was there before
  EXPECT_TRUE(is_sum_of(value, sum_of_late(value)));
  for (const test::Fault fault : {test::Fault::LosesWaits, test::Fault::LosesRecords}) {
    bool seen = false;  // on all ranks
    for (int us = 1000; !seen && us <= 1'024'000; us *= 4) {
      std::vector<at::Tensor> sums;  // their memory is not used again while it may be written late
      bool right = true;
      test::plant(fault, us);
      for (int i = 0; i < 5; ++i) {
        sums.push_back(sum_of_late(++value));
        right = is_sum_of(value, sums.back()) && right;
      }
      test::plant(test::Fault::None);
      (void)sum_of_late(++value).cpu();  // behind all of them
      const double wrong_here = right ? 0 : 1;
      seen = allreduce(at::scalar_tensor(wrong_here), {.op = ReduceOp::Min}).item<double>() > 0;
    }
    EXPECT_TRUE(seen);
  }
  ++value;
  EXPECT_TRUE(is_sum_of(value, sum_of_late(value)));
}

TEST(GpuCollectives, CpuAndGpuInOneProgram) {
  const at::Tensor on_cpu = at::ones({10});
  const at::Tensor on_gpu = at::ones({10}).to(device());
  const Handle first = allreduce_async(on_cpu, {.name = "cpu", .op = ReduceOp::Sum});
  const Handle second = allreduce_async(on_gpu, {.name = "gpu", .op = ReduceOp::Sum});
  EXPECT_TRUE(at::equal(second.wait().cpu(), first.wait()));
  EXPECT_TRUE(first.wait().is_cpu());
  EXPECT_THAT(error_of([&] {
                grouped_allreduce({on_gpu, on_cpu}, {.name = "both"});
              }),
              AllOf(HasSubstr("tensor 1 of the group is on cpu"),
                    HasSubstr("but the first is on cuda"), HasSubstr("on one device")));
}

TEST(GpuCollectives, TheDeviceOfAnotherRankIsRefused) {
  const c10::Device other(c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank() == 0 ? 3 : 0));
  const at::Tensor there = at::ones({4}, at::TensorOptions().device(other));
  EXPECT_THAT(error_of([&] { allreduce(there, {.name = "there"}); }),
              AllOf(HasSubstr("\"there\""), HasSubstr("uses cuda:" + std::to_string(local_rank())),
                    HasSubstr("horon::device()")));
}

TEST(GpuCollectives, StateFiniteChecksAndObjects) {
  torch::nn::Linear model(3, 2);
  at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model->parameters()) parameter.fill_(rank() + 1);
  model->to(device());
  EXPECT_EQ(model->weight.device(), device());
  if (size() > 1) {
    EXPECT_THAT(error_of([&] { check_replicas_equal(*model); }), HasSubstr("weight"));
  }
  broadcast_parameters(*model, size() - 1);
  check_replicas_equal(*model);
  EXPECT_TRUE(at::equal(model->weight.cpu(), at::full({2, 3}, static_cast<float>(size()))));

  const at::Tensor values = late(at::ones({9}));
  EXPECT_FALSE(found_nonfinite({values}, {}));
  if (rank() == size() - 1) values[4] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(found_nonfinite({values}, {}));
  EXPECT_EQ(broadcast_bytes("bytes " + std::to_string(rank())), "bytes 0");
}

// Modules on a GPU: the oracle is one process that has all samples, on the CPU.
TEST(GpuModules, SyncBatchNormWithoutAWaitForTheDevice) {
  const auto of_rank = [](int r) { return values_of({r + 2, 3, 2, 2}, at::kDouble, r) * 0.3 + 4; };
  const at::Tensor whole = all_rows(of_rank).requires_grad_(true);
  torch::nn::BatchNorm2d oracle(3);
  oracle->to(at::kDouble);
  oracle->forward(whole).pow(3).sum().backward();
  SyncBatchNorm mine(3);
  mine->to(device(), at::kDouble);
  const at::Tensor x = late(of_rank(rank())).requires_grad_(true);
  const int before = host_waits();
  mine->forward(x).pow(3).sum().backward();
  EXPECT_EQ(host_waits() - before, 0);
  int64_t first = 0;
  for (int r = 0; r < rank(); ++r) first += r + 2;
  expect_equal(x.grad().cpu(), whole.grad().narrow(0, first, rank() + 2), 1e-9);
  expect_equal(mine->running_var.cpu(), oracle->running_var, 1e-9);
  EXPECT_EQ(mine->num_batches_tracked.item<double>(), 1);
}

TEST(GpuModules, InfoNceOfRowsOnTheGpu) {
  const auto loss_and_gradient = [](const at::Tensor& rows) {
    const at::Tensor x = rows.detach().requires_grad_(true);
    const at::Tensor loss = info_nce(x, x.sin());
    loss.backward();
    return std::pair(loss.detach().cpu(), x.grad().cpu());
  };
  const at::Tensor rows = values_of({rank() + 1, 4}, at::kDouble, rank()) + 0.5;
  const auto [loss, gradient] = loss_and_gradient(late(rows));
  const auto [want, want_gradient] = loss_and_gradient(rows);
  expect_equal(loss, want, 1e-9);
  expect_equal(gradient, want_gradient, 1e-9);
}

TEST(GpuModules, CheckpointedPartsOnTheGpu) {
  const auto part = [](const at::Tensor& x) { return x.sin().mul(2).exp(); };
  const at::Tensor x = late(values_of({4, 3}, at::kFloat, rank())).requires_grad_(true);
  part(x).sum().backward();
  const at::Tensor want = x.grad().cpu();
  x.mutable_grad().reset();
  checkpoint(part, x).sum().backward();
  expect_equal(x.grad().cpu(), want);
}

// Metrics and logged values on a GPU: the oracle is one process that has all samples, on the CPU.
TEST(GpuMetrics, AreThoseOfTheCpuAndUpdatesDoNotWait) {
  const auto scores_of = [](int r) { return values_of({6 * r, 4}, at::kFloat, r).sin(); };
  const auto targets_of = [](int r) { return at::arange(6 * r).remainder(4); };
  const auto fill = [](metrics::MetricCollection& all) -> metrics::Mean& {
    all.add("accuracy", metrics::Accuracy({.classes = 4}));
    all.add("top 2", metrics::Accuracy({.classes = 4, .top_k = 2}));
    all.add("f1", metrics::FScore({.classes = 4, .average = metrics::Average::Macro}));
    all.add("confusion", metrics::ConfusionMatrix({.classes = 4}));
    all.add("perplexity", metrics::Perplexity());
    return all.add("mean", metrics::Mean());
  };
  metrics::MetricCollection oracle, mine;
  metrics::Mean& all_loss = fill(oracle);
  metrics::Mean& loss = fill(mine);
  oracle.update(all_rows(scores_of), all_rows(targets_of));
  for (int r = 0; r < size(); ++r) all_loss.update(scores_of(r));
  const at::Tensor scores = late(scores_of(rank())), targets = late(targets_of(rank()));
  const int before = host_waits();
  mine.update(scores, targets);
  loss.update(scores);
  EXPECT_EQ(host_waits() - before, 0);
  metrics::Auroc area({.classes = 4});
  area.update(scores, targets);
  metrics::Auroc all_areas({.classes = 4});
  all_areas.update(all_rows(scores_of), all_rows(targets_of));
  for (const auto& [name, value] : mine.compute()) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(at::allclose(value, oracle.compute_local().at(name), 1e-6, 0, true));
  }
  EXPECT_TRUE(at::allclose(area.compute(), all_areas.compute_local(), 0, 0, true));
}

TEST(GpuLogger, WaitsForTheDeviceInFlushAlone) {
  Logger logger;
  const int before = host_waits();
  for (int i = 0; i < 3; ++i) {
    const at::Tensor value = late(at::full({}, rank() + 10 * i, at::kFloat));
    logger.log("mean", value, {.weight = i});
    logger.log("sum", value, {.reduce = Reduce::Sum});
    logger.log("min", value, {.reduce = Reduce::Min});
    logger.log("max", value, {.reduce = Reduce::Max});
    logger.log("first", value, {.reduce = Reduce::First});
  }
  EXPECT_EQ(host_waits() - before, 0);
  const LogRecord record = logger.flush(1);
  const std::map<std::string, double> values(record.values.begin(), record.values.end());
  const double ranks = size(), sum_of_ranks = ranks * (ranks - 1) / 2;
  EXPECT_DOUBLE_EQ(values.at("mean"), 50.0 / 3 + sum_of_ranks / ranks);
  EXPECT_DOUBLE_EQ(values.at("sum"), 30 * ranks + 3 * sum_of_ranks);
  EXPECT_EQ(values.at("min"), 0);
  EXPECT_EQ(values.at("max"), 20 + size() - 1);
  EXPECT_EQ(values.at("first"), 20);
}

TEST(GpuCollectives, AJobThatCantUseItsGpusSaysWhy) {
  const at::Tensor on_gpu = at::ones({4}).to(device());
  shutdown();
  testing_support::host_gpus().why_no_nccl = "there is no libnccl.so.2";
  init({.set = {{"HORON_GPU_COLLECTIVES", "nccl"}}});
  EXPECT_THAT(error_of([] { (void)device(); }),
              AllOf(HasSubstr("libnccl.so.2"), HasSubstr("CUDA_VISIBLE_DEVICES")));
  EXPECT_THAT(error_of([&] { allreduce(on_gpu, {.name = "x"}); }),
              AllOf(HasSubstr("tensor \"x\": it is in cuda memory"), HasSubstr("libnccl.so.2")));
  EXPECT_TRUE(at::equal(allreduce(at::ones({4})), at::ones({4})));
  shutdown();
  init({.set = {{"HORON_GPU_COLLECTIVES", "auto"}}});  // then it goes through the host
  EXPECT_TRUE(at::equal(allreduce(on_gpu, {.name = "x"}).cpu(), at::ones({4})));
  shutdown();
  testing_support::host_gpus().why_no_nccl = "";
  init();
  EXPECT_TRUE(device().is_cuda());
}

}  // namespace
}  // namespace horon::gpu_collectives_test
