// Collectives on tensors of GPUs: LibTorch's device "cuda" made of threads, and Horon's own classes
// for CUDA and NCCL on it.
#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include "horon/tests/torch_bindings/collectives/collective_values.h"
#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/finite_check.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"
#include "horon/torch_bindings/state/broadcast_state.h"
#include "horon/torch_bindings/state/replicas.h"

namespace horon {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::error_of;
using testing_support::expect_equal;
using testing_support::host_waits;
using testing_support::values_of;

const auto* const environment =
    testing::AddGlobalTestEnvironment(new testing_support::GpuSessionEnvironment);

// The values come late into a tensor that holds others.
at::Tensor late(const at::Tensor& values) {
  at::Tensor tensor = at::full_like(values, 1).to(device());
  test::enqueue_in_current_stream([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); },
                                  device().index());
  tensor.copy_(values);
  return tensor;
}

at::Tensor sum_of_all(const std::vector<int64_t>& shape, at::ScalarType type) {
  at::Tensor sum = values_of(shape, type, 0);
  for (int r = 1; r < size(); ++r) sum = sum + values_of(shape, type, r);
  return sum;
}

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
    Handle sum;
    Handle rows;
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

// The copy into the tensor is still waiting in its stream when nobody holds the collective any
// more.
TEST(GpuCollectives, WhatIsCopiedInAnotherStreamLivesUntilThen) {
  const c10::Stream writes = test::new_stream(device().index());
  const c10::Stream reads = test::new_stream(device().index());
  const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(40)); };
  for (int number = 0; number < 3; ++number) {
    const at::Tensor mine = late(values_of({6, 4}, at::kFloat, rank()));
    test::drain_current_stream(device().index());
    Handle sum;
    {
      const c10::StreamGuard guard(writes);
      sum = allreduce_async_(mine.t(), {.op = ReduceOp::Sum});
    }
    const c10::StreamGuard guard(reads);
    test::enqueue_in_current_stream(sleep, device().index());
    (void)sum.wait();
    sum = {};
    (void)allreduce(at::ones({1}));  // the runtime lets go of what has ended
    expect_equal(mine.cpu(), sum_of_all({6, 4}, at::kFloat));
  }
}

TEST(GpuCollectives, AMissingOrderIsSeen) {
  const auto is_right = [] {
    const at::Tensor mine = late(at::full({2000}, 4.0F));
    const at::Tensor sum = allreduce(mine, {.op = ReduceOp::Sum});
    return at::equal(sum.cpu(), at::full({2000}, 4.0F * static_cast<float>(size())));
  };
  EXPECT_TRUE(is_right());
  for (const test::Fault fault : {test::Fault::LosesWaits, test::Fault::LosesRecords}) {
    test::plant(fault);
    int wrong = 0;
    for (int i = 0; i < 20; ++i) wrong += is_right() ? 0 : 1;  // a collective may be fast by chance
    test::plant(test::Fault::None);
    EXPECT_GT(wrong, 0);
    barrier();
  }
  EXPECT_TRUE(is_right());
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
              AllOf(HasSubstr("tensor 1 of the group is on cpu"), HasSubstr("the first is on cuda"),
                    HasSubstr("on one device")));
}

TEST(GpuCollectives, TheDeviceOfAnotherRankIsRefused) {
  const c10::Device other(c10::kCUDA, static_cast<c10::DeviceIndex>(rank() == 0 ? 3 : 0));
  const at::Tensor there = at::ones({4}, at::TensorOptions().device(other));
  EXPECT_THAT(error_of([&] { allreduce(there, {.name = "there"}); }),
              AllOf(HasSubstr("\"there\""), HasSubstr("works on cuda:" + std::to_string(rank())),
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

TEST(GpuCollectives, AJobThatCantUseItsGpusSaysWhy) {
  const at::Tensor on_gpu = at::ones({4}).to(device());
  shutdown();
  testing_support::host_gpus().why_no_nccl = "there is no libnccl.so.2";
  init();
  EXPECT_THAT(error_of([] { (void)device(); }),
              AllOf(HasSubstr("libnccl.so.2"), HasSubstr("CUDA_VISIBLE_DEVICES")));
  EXPECT_THAT(error_of([&] { allreduce(on_gpu, {.name = "x"}); }),
              AllOf(HasSubstr("tensor \"x\": is on cuda"), HasSubstr("libnccl.so.2")));
  EXPECT_TRUE(at::equal(allreduce(at::ones({4})), at::ones({4})));
  shutdown();
  testing_support::host_gpus().why_no_nccl = "";
  init();
  EXPECT_TRUE(device().is_cuda());
}

}  // namespace
}  // namespace horon
