// Where the memory of results is taken whose rows differ from those of the tensors.
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include "horon/tests/torch_bindings/collectives/collective_values.h"
#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/torch_bindings/collectives/autograd.h"
#include "horon/torch_bindings/collectives/collectives.h"

namespace horon::gpu_rows_test {
namespace {

using testing_support::expect_equal;
using testing_support::sum_of_all;
using testing_support::values_of;

const std::vector<int64_t>& shape() {
  static const std::vector<int64_t> of_all{2L * size() + 1, 3};
  return of_all;
}

at::Tensor my_share(const at::Tensor& sum) {
  const int64_t first = rank() == 0 ? 0 : 2L * rank() + 1;
  return sum.slice(0, first, first + (rank() == 0 ? 3 : 2));
}

// Whether a collective of rank 0, which the other ranks call later, ends while a kernel still runs
// that the stream of the call was given after it.
void expect_end_before_later_work(const std::string& what,
                                  const std::function<Handle(const at::Tensor&)>& begin,
                                  const at::Tensor& want) {
  SCOPED_TRACE(what);
  const int gpu = device().index();
  const at::Tensor x = values_of(shape(), at::kFloat, rank()).to(device());
  (void)begin(x).wait();  // connects the ranks
  std::atomic<bool> may_end = false;
  std::atomic<bool> done = false;
  if (rank() != 0) barrier();  // until rank 0 has made its call
  const Handle handle = begin(x);
  if (rank() == 0) {
    const auto blocked = [&] {
      while (!may_end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    test::enqueue_in_current_stream(blocked, gpu);
    barrier();
  }
  {
    const c10::StreamGuard guard(test::new_stream(gpu));
    const at::Tensor result = handle.wait();
    test::enqueue_in_current_stream([&] { done = true; }, gpu);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!done && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(done);
    may_end = true;
    expect_equal(result.cpu(), want);
  }
  test::drain_current_stream(gpu);
}

TEST(GpuRows, WhatKnowsItsSizeAtTheCallWaitsForNoLaterWork) {
  const at::Tensor sum = sum_of_all(shape(), at::kFloat);
  expect_end_before_later_work(
      "even", [](const at::Tensor& x) { return reducescatter_async(x, {.op = ReduceOp::Sum}); },
      my_share(sum));

  std::vector<int64_t> splits(static_cast<size_t>(size()), 0);
  splits.front() = sum.size(0);
  expect_end_before_later_work(
      "by splits",
      [&](const at::Tensor& x) {
        return reducescatter_async(x, {.op = ReduceOp::Sum, .splits = splits});
      },
      rank() == 0 ? sum : sum.slice(0, 0, 0));

  const int root = 0;
  expect_end_before_later_work(
      "a reduce",
      [&](const at::Tensor& x) { return reduce_async(x, {.root = root, .op = ReduceOp::Sum}); },
      rank() == root ? sum : at::empty({0}));

  const at::Tensor rows = values_of(shape(), at::kFloat, 0);
  const at::Tensor given = at::empty({size() * rows.size(0), 3}, device());
  std::vector<at::Tensor> all;
  for (int r = 0; r < size(); ++r) all.push_back(values_of(shape(), at::kFloat, r));
  expect_end_before_later_work(
      "an allgather into a tensor of the program",
      [&](const at::Tensor& x) { return allgather_async(x, {.output = given}); }, at::cat(all));
}

TEST(GpuRows, MayBeChangedInPlace) {
  const at::Tensor x = values_of(shape(), at::kFloat, rank()).to(device()).requires_grad_(true);
  const at::Tensor all = autograd::allgather(x).mul_(2);
  all.sum().backward();
  expect_equal(x.grad().cpu(), at::full(shape(), 2.0F * size()));
  EXPECT_FALSE(allgather(x).is_view());
}

}  // namespace
}  // namespace horon::gpu_rows_test
