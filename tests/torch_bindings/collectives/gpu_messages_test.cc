// Tensors from the GPU of one rank to that of another, on the GPUs made of threads.
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/collectives/collective_values.h"
#include "horon/tests/torch_bindings/host_gpu/late_tensors.h"
#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/point_to_point.h"

namespace horon::gpu_messages_test {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::expect_equal;
using testing_support::kTensorTypes;
using testing_support::late;
using testing_support::sum_of_all;
using testing_support::values_of;

int next() { return (rank() + 1) % size(); }
int previous() { return (rank() + size() - 1) % size(); }

// What is enqueued from now on happens late.
void delay_current_stream() {
  if (device().is_cpu()) return;
  test::enqueue_in_current_stream([] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); },
                                  device().index());
}

TEST(GpuMessages, EveryTypeAndShapeAroundTheRing) {
  for (const at::ScalarType type : kTensorTypes) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{}, {0}, {3}, {4, 0, 2}, {70, 31}}) {
      SCOPED_TRACE(testing::Message() << type << " " << at::IntArrayRef(shape));
      const at::Tensor mine = late(values_of(shape, type, rank()));
      const Handle sent = send_async(mine, next());
      const at::Tensor got = at::zeros_like(mine);
      EXPECT_EQ(recv(got, previous()).data_ptr(), got.data_ptr());
      EXPECT_EQ(got.device(), device());
      expect_equal(got.cpu(), values_of(shape, type, previous()));
      (void)sent.wait();
      expect_equal(mine.cpu(), values_of(shape, type, rank()));
    }
  }
}

TEST(GpuMessages, StridesOfBothSidesAreTheirOwn) {
  const at::Tensor mine = late(values_of({6, 5}, at::kFloat, rank())).t();
  const Handle sent = send_async(mine, next());
  const at::Tensor whole = late(at::full({5, 12}, -1.0F));
  recv(whole.slice(1, 0, 12, 2), previous());
  (void)sent.wait();
  const at::Tensor got = whole.cpu();
  expect_equal(got.slice(1, 0, 12, 2).contiguous(),
               values_of({6, 5}, at::kFloat, previous()).t().contiguous());
  expect_equal(got.slice(1, 1, 12, 2).contiguous(), at::full({5, 6}, -1.0F));
}

// Also from ranks that have no GPU.
TEST(GpuMessages, FromAnyRank) {
  std::vector<Handle> sent;
  for (int to = 0; to < size(); ++to) {
    if (to == rank()) continue;
    sent.push_back(send_async(late(values_of({700}, at::kComplexFloat, rank())), to));
  }
  int ranks = rank();
  for (int i = 0; i + 1 < size(); ++i) {
    const at::Tensor got = late(at::full({700}, -1.0F, at::kComplexFloat));
    const ReceiveHandle handle = recv_async(got, kAnySource);
    expect_equal(handle.wait().cpu(), values_of({700}, at::kComplexFloat, handle.source()));
    ranks += handle.source();
  }
  EXPECT_EQ(ranks, size() * (size() - 1) / 2);
  for (const Handle& each : sent) (void)each.wait();
  barrier();
}

// What the program had enqueued on the tensor before happens before the message is written to it.
TEST(GpuMessages, AreWrittenBehindWhatWasThereBefore) {
  for (int number = 0; number < 5; ++number) {
    const Handle sent = send_async(late(values_of({2000}, at::kFloat, rank() + number)), next());
    const at::Tensor got = late(at::full({2000}, -1.0F));
    recv(got, previous());
    got.add_(1);
    expect_equal(got.cpu(), values_of({2000}, at::kFloat, previous() + number) + 1);
    (void)sent.wait();
  }
}

// After send() the tensor belongs to the program again.
TEST(GpuMessages, WhatIsSentMayBeWrittenAfterwards) {
  const int pairs = size() / 2;
  if (rank() >= 2 * pairs) return;
  for (int number = 0; number < 5; ++number) {
    if (rank() % 2 == 0) {
      const at::Tensor mine = late(at::full({5000}, number, at::kInt));
      send(mine, rank() + 1);
      mine.fill_(-1);
    } else {
      const at::Tensor got = at::zeros({5000}, at::TensorOptions(at::kInt).device(device()));
      expect_equal(recv(got, rank() - 1).cpu(), at::full({5000}, number, at::kInt));
    }
  }
}

TEST(GpuMessages, GoToTheStreamThatTakesThem) {
  const c10::Stream writes = test::new_stream(device().index());
  const c10::Stream reads = test::new_stream(device().index());
  for (int number = 0; number < 5; ++number) {
    Handle sent, received;
    {
      const c10::StreamGuard guard(writes);
      sent = send_async(late(values_of({900}, at::kFloat, rank() + number)), next());
      received = recv_async(at::zeros({900}, device()), previous());
    }  // nobody but the messages holds the tensors
    const c10::StreamGuard guard(reads);
    delay_current_stream();
    const at::Tensor copy = at::empty({900}, device());
    copy.copy_(received.wait());
    received = {};
    (void)sent.wait();
    (void)allreduce(at::ones({1}));  // the runtime lets go of what has ended
    expect_equal(copy.cpu(), values_of({900}, at::kFloat, previous() + number));
  }
}

// In another order on each rank: a message that waited in a stream behind a collective, or a
// collective behind a message, would wait for ever.
TEST(GpuMessages, BesideCollectivesInAnyOrder) {
  for (int number = 0; number < 20; ++number) {
    const at::Tensor mine = late(values_of({300}, at::kFloat, rank() + number));
    const at::Tensor summed = late(values_of({3000}, at::kFloat, rank()));
    const at::Tensor got = at::zeros({300}, device());
    Handle sum, sent, received;
    const auto reduce = [&] {
      sum = allreduce_async(summed,
                            {.name = "beside " + std::to_string(number), .op = ReduceOp::Sum});
    };
    if (rank() == 0) reduce();
    if (rank() % 2 == 0) sent = send_async(mine, next());
    if (rank() == 1) reduce();
    received = recv_async(got, previous());
    if (rank() % 2 != 0) sent = send_async(mine, next());
    if (rank() > 1) reduce();
    expect_equal(received.wait().cpu(), values_of({300}, at::kFloat, previous() + number));
    expect_equal(sum.wait().cpu(), sum_of_all({3000}, at::kFloat));
    (void)sent.wait();
  }
}

TEST(GpuMessages, ManyAreUnderWayAtOnce) {
  constexpr int kMessages = 100;
  std::vector<Handle> handles;
  std::vector<at::Tensor> got;
  for (int i = 0; i < kMessages; ++i) {
    handles.push_back(send_async(at::full({i}, static_cast<float>(i), device()), next()));
    got.push_back(at::zeros({i}, device()));
    handles.push_back(recv_async(got.back(), previous()));
  }
  for (const Handle& handle : handles) (void)handle.wait();
  for (int i = 0; i < kMessages; ++i) {
    expect_equal(got[static_cast<size_t>(i)].cpu(), at::full({i}, static_cast<float>(i)));
  }
}

TEST(GpuMessages, TheCpuOnOneSideAndTheGpuOnTheOtherIsAMismatch) {
  if (rank() < 2) {
    const auto call = [](const at::Tensor& tensor) {
      rank() == 0 ? send(tensor, 1) : (void)recv(tensor, 0);
    };
    const at::Tensor here = at::ones({4});
    EXPECT_THAT(
        error_of([&] { call(rank() == 0 ? here : here.to(device())); }),
        AllOf(HasSubstr("send 0 to 1, tag 0"), HasSubstr("host on rank 0, cuda on rank 1")));
    const at::Tensor there = at::full({4}, rank() == 0 ? 3.0F : 0.0F, device());
    call(there);
    expect_equal(there.cpu(), at::full({4}, 3.0F));
    if (rank() == 0) here.fill_(5);
    call(here);
    expect_equal(here, at::full({4}, 5.0F));
  }
  barrier();
}

}  // namespace
}  // namespace horon::gpu_messages_test
