// The backend of torch.distributed on tensors of GPUs: LibTorch's device "cuda" made of threads,
// and Horon's own classes for CUDA and NCCL on it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/collectives/collective_values.h"
#include "horon/tests/torch_bindings/host_gpu/late_tensors.h"
#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/torch_bindings/python/process_group/backend.h"
#include "horon/torch_bindings/tensors/stream_order.h"

namespace horon::gpu_process_group_test {
namespace {

using python::process_group::HoronBackend;
using python::process_group::TensorLists;
using python::process_group::Tensors;
using python::process_group::WorkPtr;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::expect_equal;
using testing_support::host_waits;
using testing_support::late;
using testing_support::sum_of_all;
using testing_support::values_of;

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

at::Tensor empty(const std::vector<int64_t>& shape) {
  return at::full(shape, -9, at::kFloat).to(device());
}

at::Tensor mine(const std::vector<int64_t>& shape) {
  return late(values_of(shape, at::kFloat, rank()));
}

// What holds back a stream until it is opened.
class Lock {
 public:
  void close_current_stream() const {
    test::enqueue_in_current_stream([open = open_] { open->wait(false); }, device().index());
  }
  void open() const {
    *open_ = true;
    open_->notify_all();
  }

 private:
  const std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

class GpuProcessGroup : public testing::Test {
 protected:
  WorkPtr all_reduce(const at::Tensor& tensor) {
    Tensors list{tensor};
    return group_->allreduce(list, {});
  }
  WorkPtr all_gather(const Tensors& outputs, const at::Tensor& input) {
    TensorLists lists{outputs};
    Tensors inputs{input};
    return group_->allgather(lists, inputs, {});
  }
  static void skip_if_the_host_reduces() {
    if (!testing_support::device_reduces()) GTEST_SKIP() << "the host does the work";
  }

  const c10::intrusive_ptr<HoronBackend> group_ =
      c10::make_intrusive<HoronBackend>(ProcessSet(), std::chrono::seconds(60));
  const int64_t ranks_ = size();
};

TEST_F(GpuProcessGroup, KindsWithOneResultForAll) {
  const int root = size() - 1;
  at::Tensor tensor = mine({3, 5});
  all_reduce(tensor)->wait();
  expect_equal(tensor.cpu(), sum_of_all({3, 5}, at::kFloat));

  tensor = mine({17});
  Tensors list{tensor};
  ::c10d::BroadcastOptions from_root;
  from_root.rootRank = root;
  group_->broadcast(list, from_root)->wait();
  expect_equal(tensor.cpu(), values_of({17}, at::kFloat, root));

  tensor = mine({4});
  list = {tensor};
  ::c10d::ReduceOptions to_root;
  to_root.rootRank = root;
  group_->reduce(list, to_root)->wait();
  if (rank() == root) expect_equal(tensor.cpu(), sum_of_all({4}, at::kFloat));

  list = {mine({3}), mine({2, 2})};
  group_->allreduce_coalesced(list, {})->wait();
  expect_equal(list[1].cpu(), sum_of_all({2, 2}, at::kFloat));
  group_->barrier({})->wait();
}

TEST_F(GpuProcessGroup, KindsThatDivideAndJoin) {
  const int root = size() - 1;
  Tensors rows;
  for (int r = 0; r < size(); ++r) rows.push_back(empty({2, 3}));
  all_gather(rows, mine({2, 3}))->wait();
  for (int r = 0; r < size(); ++r) {
    expect_equal(rows[static_cast<size_t>(r)].cpu(), values_of({2, 3}, at::kFloat, r));
  }

  at::Tensor all = empty({ranks_ * 2});
  at::Tensor tensor = mine({2});
  group_->_allgather_base(all, tensor, {})->wait();
  expect_equal(all.cpu().slice(0, 2 * root), values_of({2}, at::kFloat, root));

  at::Tensor part = empty({6});
  tensor = mine({ranks_ * 6});
  group_->_reduce_scatter_base(part, tensor, {})->wait();
  const at::Tensor sum = sum_of_all({ranks_ * 6}, at::kFloat);
  expect_equal(part.cpu(), sum.slice(0, 6L * rank(), 6L * (rank() + 1)));

  // Row r of what is sent goes to rank r.
  at::Tensor exchanged = empty({ranks_, 4});
  tensor = mine({ranks_, 4});
  std::vector<int64_t> no_splits;
  group_->alltoall_base(exchanged, tensor, no_splits, no_splits, {})->wait();
  for (int r = 0; r < size(); ++r) {
    expect_equal(exchanged.cpu()[r], values_of({ranks_, 4}, at::kFloat, r)[rank()]);
  }
}

TEST_F(GpuProcessGroup, KindsWithARoot) {
  const int root = size() - 1;
  ::c10d::GatherOptions gather_to_root;
  gather_to_root.rootRank = root;
  TensorLists lists;
  Tensors gathered;
  for (int r = 0; r < size(); ++r) gathered.push_back(empty({5}));
  if (rank() == root) lists.push_back(gathered);
  Tensors list{mine({5})};
  group_->gather(lists, list, gather_to_root)->wait();
  if (rank() == root) expect_equal(gathered.front().cpu(), values_of({5}, at::kFloat, 0));

  ::c10d::ScatterOptions scatter_from_root;
  scatter_from_root.rootRank = root;
  lists.clear();
  if (rank() == root) {
    Tensors parts;
    for (int r = 0; r < size(); ++r) parts.push_back(late(values_of({3}, at::kFloat, r + 5)));
    lists.push_back(parts);
  }
  list = {empty({3})};
  group_->scatter(list, lists, scatter_from_root)->wait();
  expect_equal(list.front().cpu(), values_of({3}, at::kFloat, rank() + 5));
}

TEST_F(GpuProcessGroup, NothingWaitsOnTheHost) {
  const at::Tensor x = empty({3000});
  at::Tensor rows = empty({ranks_ * 7});
  at::Tensor row = empty({7});
  const auto step = [&](int number) {
    x.fill_(number);
    row.fill_(number);
    const WorkPtr sum = all_reduce(x);
    const WorkPtr joined = group_->_allgather_base(rows, row, {});
    sum->wait();
    joined->wait();
    x.mul_(2);
    rows.mul_(3);
  };
  step(0);
  const int before = host_waits();
  for (int number = 1; number <= 20; ++number) step(number);
  EXPECT_EQ(host_waits(), before);
  expect_equal(x.cpu(), at::full({3000}, 40.0F * static_cast<float>(size())));
  expect_equal(rows.cpu(), at::full({ranks_ * 7}, 60.0F));
}

// The first wait() is in a slow stream, so that its copy into the tensors comes late; the second
// one is in the stream of the reader.
TEST_F(GpuProcessGroup, EveryStreamThatWaitsFindsTheResult) {
  for (int number = 0; number < 3; ++number) {
    Tensors rows;
    for (int r = 0; r < size(); ++r) rows.push_back(empty({400}));
    const WorkPtr work = all_gather(rows, mine({400}));
    {
      const c10::StreamGuard guard(test::new_stream(device().index()));
      test::enqueue_in_current_stream([] { sleep_ms(30); }, device().index());
      work->wait();
    }
    work->wait();
    for (int r = 0; r < size(); ++r) {
      expect_equal(rows[static_cast<size_t>(r)].cpu(), values_of({400}, at::kFloat, r));
    }
  }
}

TEST_F(GpuProcessGroup, AFutureHoldsBackNoStreamButThatOfWhoWaitsForIt) {
  skip_if_the_host_reduces();
  if (IsSkipped()) return;
  const Lock lock;
  const at::Tensor tensor = empty({900});
  c10::intrusive_ptr<c10::ivalue::Future> future;
  WorkPtr work;
  {
    const c10::StreamGuard guard(test::new_stream(device().index()));
    lock.close_current_stream();
    tensor.copy_(values_of({900}, at::kFloat, rank()));
    work = all_reduce(tensor);
    future = work->getFuture();
  }
  while (!future->completed()) sleep_ms(1);
  std::atomic<bool> called = false;
  future->addCallback([&](c10::ivalue::Future& of) { called = of.hasValue(); });
  EXPECT_TRUE(called);
  EXPECT_FALSE(work->isCompleted());
  test::drain_current_stream(device().index());  // it would never end if it waited
  lock.open();
  future->wait();
  expect_equal(future->value().toTensorVector().front().cpu(), sum_of_all({900}, at::kFloat));
  EXPECT_TRUE(work->isCompleted());
  EXPECT_TRUE(work->isSuccess());
}

TEST_F(GpuProcessGroup, ToAskWhetherItIsCompletedHoldsBackNoStream) {
  skip_if_the_host_reduces();
  if (IsSkipped()) return;
  const Lock lock;
  Tensors rows;
  for (int r = 0; r < size(); ++r) rows.push_back(empty({50}));
  WorkPtr work;
  {
    const c10::StreamGuard guard(test::new_stream(device().index()));
    lock.close_current_stream();
    const at::Tensor input = at::empty({50}, device());
    input.copy_(values_of({50}, at::kFloat, rank()));
    work = all_gather(rows, input);
  }
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(work->isCompleted());
    sleep_ms(1);
  }
  test::drain_current_stream(device().index());
  lock.open();
  while (!work->isCompleted()) sleep_ms(1);
  // No wait: what is completed is in memory.
  for (int r = 0; r < size(); ++r) {
    const at::Tensor& got = rows[static_cast<size_t>(r)];
    EXPECT_TRUE(at::equal(at::from_blob(got.data_ptr(), {50}, at::kFloat).clone(),
                          values_of({50}, at::kFloat, r)));
  }
}

// A mesh of two dimensions has groups that overlap, and the group of all ranks.
TEST_F(GpuProcessGroup, GroupsOfSomeRanks) {
  std::vector<c10::intrusive_ptr<HoronBackend>> groups;
  std::vector<std::vector<int>> members;
  for (int first = 0; first < size(); ++first) {  // each rank and the next one
    std::vector<int> ranks{first, (first + 1) % size()};
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    if (std::find(ranks.begin(), ranks.end(), rank()) == ranks.end()) continue;
    const ProcessSet set = add_process_set_among(ranks, static_cast<uint32_t>(first));
    EXPECT_EQ(device(set), device());
    groups.push_back(c10::make_intrusive<HoronBackend>(set, std::chrono::seconds(60)));
    members.push_back(ranks);
  }
  for (int round = 0; round < 5; ++round) {
    std::vector<at::Tensor> tensors;
    std::vector<WorkPtr> works;
    for (const auto& group : groups) {
      tensors.push_back(mine({200}));
      Tensors list{tensors.back()};
      works.push_back(group->allreduce(list, {}));
    }
    const at::Tensor of_all = mine({300});
    works.push_back(all_reduce(of_all));
    for (const WorkPtr& work : works) work->wait();
    expect_equal(of_all.cpu(), sum_of_all({300}, at::kFloat));
    for (size_t i = 0; i < groups.size(); ++i) {
      at::Tensor want = at::zeros({200});
      for (const int r : members[i]) want += values_of({200}, at::kFloat, r);
      expect_equal(tensors[i].cpu(), want);
    }
  }
}

TEST_F(GpuProcessGroup, MemoryOfTheDeviceIsTorchs) {
  EXPECT_FALSE(group_->supportsTensorAlloc(device().index()));
  EXPECT_EQ(group_->allocateTensor(5, at::device(device()).dtype(at::kFloat)).device(), device());
}

// As DDP calls it: futures of buckets, and a callback on each.
TEST_F(GpuProcessGroup, CallbacksOfFuturesWorkInAStreamOfTheirOwn) {
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> means;
  for (int bucket = 0; bucket < 6; ++bucket) {
    const at::Tensor tensor = late(values_of({40, 5}, at::kFloat, rank() + bucket));
    means.push_back(all_reduce(tensor)->getFuture()->then(
        [](c10::ivalue::Future& sum) {
          return c10::IValue(sum.value().toTensorVector().front().div(size()));
        },
        c10::TensorType::get()));
  }
  for (int bucket = 0; bucket < 6; ++bucket) {
    means[static_cast<size_t>(bucket)]->wait();
    at::Tensor want = at::zeros({40, 5});
    for (int r = 0; r < size(); ++r) want += values_of({40, 5}, at::kFloat, r + bucket);
    expect_equal(means[static_cast<size_t>(bucket)]->value().toTensor().cpu(), want.div(size()));
  }
}

TEST_F(GpuProcessGroup, MessagesGoAroundTheRing) {
  if (size() < 2) GTEST_SKIP() << "nobody to send to";
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  for (int number = 0; number < 5; ++number) {
    Tensors sent{late(values_of({700}, at::kFloat, rank() + number))};
    Tensors received{empty({700})};
    const WorkPtr send = group_->send(sent, next, number);
    const WorkPtr receive = group_->recv(received, previous, number);
    receive->wait();
    expect_equal(received[0].cpu(), values_of({700}, at::kFloat, previous + number));
    send->wait();
    EXPECT_TRUE(send->isSuccess());
    while (!receive->isCompleted()) sleep_ms(1);
  }
}

TEST_F(GpuProcessGroup, WhatIsWrongIsToldToAllAndTheGroupGoesOn) {
  const at::Tensor on_gpu = empty({4});
  Tensors on_cpu(static_cast<size_t>(size()), at::zeros({4}));
  EXPECT_THAT(error_of([&] { all_gather(on_cpu, on_gpu)->wait(); }),
              AllOf(HasSubstr("is on cuda"), HasSubstr("and cpu"), HasSubstr("on one device")));
  if (size() > 1) {
    const std::string text = error_of([&] { all_reduce(empty({rank() == 0 ? 4 : 5}))->wait(); });
    EXPECT_THAT(text, AllOf(HasSubstr("c10d.all#"), HasSubstr("shape"), HasSubstr("rank 0")));
    // Some hold the tensor on the CPU, some on the GPU.
    const at::Tensor here = rank() == 0 ? at::ones({4}) : empty({4});
    const WorkPtr work = all_reduce(here);
    const auto future = work->getFuture();
    EXPECT_THAT(error_of([&] { work->wait(); }), HasSubstr("rank 0"));
    EXPECT_TRUE(work->isCompleted());
    EXPECT_FALSE(work->isSuccess());
    while (!future->completed()) sleep_ms(1);
    EXPECT_TRUE(future->hasError());
  }
  const at::Tensor tensor = mine({4});
  all_reduce(tensor)->wait();
  expect_equal(tensor.cpu(), sum_of_all({4}, at::kFloat));
  const at::Tensor of_cpu = values_of({4}, at::kFloat, rank());
  all_reduce(of_cpu)->wait();
  expect_equal(of_cpu, sum_of_all({4}, at::kFloat));
}

// A future is completed in a stream that nobody else knows. The capture ends only if that stream
// has been waited for, whether the program asks the work or the future.
TEST_F(GpuProcessGroup, IsCapturedWithWorksAndFutures) {
  skip_if_the_host_reduces();
  if (IsSkipped()) return;
  const at::Tensor first = empty({30});
  const at::Tensor second = empty({4});
  all_reduce(first)->wait();
  test::drain_current_stream(device().index());
  ops::CudaStream const stream = torch_detail::current_stream(device()).native_handle();
  testing_support::my_gpu().begin_capture(stream);
  first.fill_(rank() + 1);
  second.fill_(10);
  const WorkPtr both = all_reduce(first);
  const WorkPtr asked = all_reduce(second);
  const auto future_of_both = both->getFuture();
  const auto future = asked->getFuture();
  both->wait();
  future->wait();
  EXPECT_TRUE(both->isCompleted());
  EXPECT_TRUE(future->completed());
  const auto graph = testing_support::my_gpu().end_capture(stream);
  for (int launch = 0; launch < 3; ++launch) {
    testing_support::my_gpu().launch(graph, stream);
    expect_equal(first.cpu(), at::full({30}, static_cast<float>(ranks_ * (ranks_ + 1) / 2)));
    expect_equal(second.cpu(), at::full({4}, static_cast<float>(10 * ranks_)));
  }
}

}  // namespace
}  // namespace horon::gpu_process_group_test
