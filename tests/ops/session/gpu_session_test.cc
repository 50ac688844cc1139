// A whole job with tensors on GPUs, from init() to shutdown(), on CUDA and NCCL of the host.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/ops/cuda/cuda_event.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/session/barrier.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/tests/ops/session/gpu_session_support.h"

namespace horon::gpu_session {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(GpuSession, WithoutGpuTensorsNothingIsOpened) {
  start();
  EXPECT_EQ(ops::gpu()->unavailable(), "");
  const Floats data = floats(1000, mine());
  const Handle handle = allreduce({}, "x", data, DeviceKind::Host);
  (void)handle->get();
  EXPECT_EQ(data->front(), sum_of({}));
  shutdown();
  EXPECT_EQ(libraries_->opened_device(), nullptr);
  EXPECT_EQ(libraries_->opened_nccl(), nullptr);
}

// Meanwhile the rank answers the others: it is asked after a second, and would soon count as dead.
TEST_F(GpuSession, ToOpenADeviceMayTakeLong) {
  if (test_size() != 3) GTEST_SKIP() << "it takes long, and one number of ranks shows it: 3";
  test::HostGpuLibraries::Options options;
  if (test_rank() == test_size() - 1) options.opens_in_ms = 9500;
  // By the host: then the tensor is packed first, which needs the device.
  start(options, {{"HORON_DEAD_AFTER_S", "6"}, {"HORON_GPU_COLLECTIVES", "host"}});
  const Floats on_gpu = floats(100, mine());
  const Handle waiting = allreduce({}, "gpu", on_gpu);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    barrier_async();  // nobody waits for it, but its messages must come
  }
  (void)waiting->get();
  EXPECT_THAT(*on_gpu, AllAre(sum_of({})));
}

TEST_F(GpuSession, ReducesOnGpusAndOnTheHostInOneJob) {
  start();
  for (int round = 0; round < 4; ++round) {
    const Floats on_gpu = floats(3000, mine());
    const Floats on_host = floats(3000, mine());
    const Floats average = floats(5, mine());
    const Handle first = allreduce({}, "gpu", on_gpu);
    const Handle second = allreduce({}, "host", on_host, DeviceKind::Host);
    const Handle third = allreduce({}, "average", average, DeviceKind::Cuda, ReduceOp::Average);
    for (const Handle& handle : {first, second, third}) (void)handle->get();
    EXPECT_EQ(test::HostCuda::current_device(), 0);  // as before, though this thread drove the loop
    EXPECT_THAT(*on_gpu, AllAre(sum_of({})));
    EXPECT_THAT(*on_host, AllAre(sum_of({})));
    EXPECT_THAT(*average, AllAre(sum_of({}) / static_cast<float>(size())));
  }
}

TEST_F(GpuSession, MovesBlocksOnGpus) {
  start();
  const auto received = floats(static_cast<size_t>(2 * size()), -1);
  const auto run = [&](CollectiveKind kind, const Floats& data, std::vector<int64_t> splits = {}) {
    Submission given =
        submission_of({}, "blocks", spec_of(kind, data->size(), DeviceKind::Cuda), data);
    given.memory.front().output = nullptr;
    given.splits = std::move(splits);
    given.allocate_output = [received](size_t, int64_t, core::MemoryQueue&) {
      return reinterpret_cast<std::byte*>(received->data());
    };
    (void)ops::runtime().submit(std::move(given))->get();
  };
  run(CollectiveKind::Allgather, floats(2, mine()));
  for (int from = 0; from < size(); ++from) {
    EXPECT_EQ((*received)[static_cast<size_t>(2 * from)], static_cast<float>(from + 1));
  }
  const Floats to_all = floats(static_cast<size_t>(size()), 0);
  std::iota(to_all->begin(), to_all->end(), 10 * mine());
  run(CollectiveKind::Alltoall, to_all, std::vector<int64_t>(static_cast<size_t>(size()), 1));
  for (int from = 0; from < size(); ++from) {
    EXPECT_EQ((*received)[static_cast<size_t>(from)], static_cast<float>(10 * (from + 1) + rank()));
  }
  run(CollectiveKind::Reducescatter, floats(static_cast<size_t>(size()), mine()));
  EXPECT_EQ(received->front(), sum_of({}));
  const Floats data = floats(7, mine());
  auto spec = spec_of(CollectiveKind::Broadcast, 7, DeviceKind::Cuda);
  spec->root = size() - 1;
  (void)ops::runtime().submit(submission_of({}, "broadcast", spec, data))->get();
  EXPECT_THAT(*data, AllAre(static_cast<float>(size())));
}

std::vector<int> ranks_of_bits(int bits) {
  std::vector<int> ranks;
  for (int rank = 0; rank < test_size(); ++rank) {
    if ((bits >> rank & 1) != 0) ranks.push_back(rank);
  }
  return ranks;
}

// A random program: every rank submits the same tensors of several sets in an order of its own, on
// GPUs and on the host.
void use_at_the_same_time(const std::vector<ProcessSet>& mine_of, float value) {
  std::mt19937 random(static_cast<uint32_t>(rank()) + 7);
  struct Running {
    Handle handle;
    Floats data;
    float expected;
  };
  for (int round = 0; round < 4; ++round) {
    std::vector<std::pair<ProcessSet, size_t>> calls;
    for (const ProcessSet& set : mine_of) {
      for (const size_t count : {5, 700, 40'000}) calls.emplace_back(set, count);
    }
    std::shuffle(calls.begin(), calls.end(), random);
    std::vector<Running> running;
    for (const auto& [set, count] : calls) {
      const DeviceKind device = count == 700 ? DeviceKind::Host : DeviceKind::Cuda;
      Running& one = running.emplace_back();
      one.data = floats(count, value);
      one.expected = sum_of(set);
      one.handle = allreduce(set, "sum " + std::to_string(count), one.data, device);
    }
    for (Running& one : running) {
      (void)one.handle->get();
      ASSERT_THAT(*one.data, AllAre(one.expected));
    }
  }
}

TEST_F(GpuSession, ProcessSetsWorkAtTheSameTime) {
  start();
  std::vector<ProcessSet> mine_of = {ProcessSet()};
  std::vector<ProcessSet> all;
  for (int bits = 1; bits < 1 << test_size(); ++bits) {
    all.push_back(add_process_set(ranks_of_bits(bits)));
    if (all.back().includes_me()) mine_of.push_back(all.back());
  }
  use_at_the_same_time(mine_of, mine());
  for (const ProcessSet& set : all) remove_process_set(set);
}

TEST_F(GpuSession, SoDoThoseThatTheirMembersMakeAlone) {
  start();
  (void)allreduce({}, "first", floats(10, mine()))->get();
  order_sets_on_gpus();
  order_sets_on_gpus();  // does nothing
  std::vector<ProcessSet> mine_of = {ProcessSet()};
  for (int bits = 1; bits < 1 << test_size(); ++bits) {
    const std::vector<int> ranks = ranks_of_bits(bits);
    if (std::find(ranks.begin(), ranks.end(), rank()) == ranks.end()) continue;
    mine_of.push_back(add_process_set_among(ranks, static_cast<uint32_t>(bits)));
  }
  use_at_the_same_time(mine_of, mine());
  for (const ProcessSet& set : mine_of) {
    if (!set.is_world()) leave_process_set(set);
  }
  const Floats data = floats(10, mine());
  (void)allreduce({}, "last", data)->get();
  EXPECT_THAT(*data, AllAre(sum_of({})));
}

// Ranks outside such a set do not know it, so their work has no common order with it.
TEST_F(GpuSession, ASetThatItsMembersMakeAloneNeedsAnOrderBefore) {
  start();
  if (!ops::gpu()->uses_nccl()) GTEST_SKIP() << "the host keeps an order without that";
  const ProcessSet early = add_process_set_among({rank()}, 1);
  EXPECT_THAT(error_of([&] { return allreduce(early, "x", floats(3, 1)); }),
              AllOf(HasSubstr("\"x\""), HasSubstr("its members made it alone"),
                    HasSubstr("order_sets_on_gpus()")));
  (void)add_process_set({0});
  EXPECT_NE(ops::runtime().unavailable(early.id(), DeviceKind::Cuda), "");
  const ProcessSet late = add_process_set_among({rank()}, 2);
  (void)allreduce(late, "x", floats(3, 1))->get();
}

// A training step: the program's stream writes gradients, waits for the results and reads them; the
// host waits for none of it.
TEST_F(GpuSession, ATrainingWaitsNeverOnTheHost) {
  start();
  const auto cuda = ops::gpu()->cuda();
  ops::CudaQueue program(cuda);
  std::array<Floats, 4> gradients;
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = floats(100 + 9000 * i, 0);
  std::atomic<int> wrong{0};
  for (int step = 0; step < 12; ++step) {
    std::vector<Handle> handles;
    for (size_t i = 0; i < gradients.size(); ++i) {
      const Floats& gradient = gradients[i];
      device().enqueue(program.stream(), [gradient, value = mine() * static_cast<float>(step)] {
        std::fill(gradient->begin(), gradient->end(), value);
        return true;
      });
      Submission given = submission_of(
          {}, "gradient " + std::to_string(i),
          spec_of(CollectiveKind::Allreduce, gradient->size(), DeviceKind::Cuda), gradient);
      given.ready = std::make_unique<ops::CudaEvent>(cuda, program.stream());
      handles.push_back(ops::runtime().submit(std::move(given)));
    }
    for (const Handle& handle : handles) {
      wait_in(program, handle);
    }
    const float expected = sum_of({}) * static_cast<float>(step);
    device().enqueue(program.stream(), [&wrong, gradients, expected] {
      for (const Floats& gradient : gradients) {
        wrong += static_cast<int>(std::count_if(gradient->begin(), gradient->end(),
                                                [&](float value) { return value != expected; }));
      }
      return true;
    });
  }
  EXPECT_EQ(device().host_waits(), 0);
  program.record()->wait();
  EXPECT_EQ(wrong, 0);
}

// The thread that waits steps the loop. It stays out of captures as long as it does so, and no
// longer.
TEST_F(GpuSession, NobodysGraphCaptureIsBroken) {
  start();
  const Floats data = floats(5000, 1);
  (void)allreduce({}, "first", data)->get();
  ops::CudaQueue program(ops::gpu()->cuda());
  device().set_capturing(true);
  for (int round = 0; round < 10; ++round) {
    const Handle one = allreduce({}, "one", data);
    const Handle two = allreduce({}, "two", floats(20'000 * static_cast<size_t>(round + 1), 1));
    for (const Handle& handle : {one, two}) {
      wait_in(program, handle);
      EXPECT_EQ(test::HostCuda::capture_mode(), 0);
    }
  }
  barrier();
  device().set_capturing(false);
  EXPECT_EQ(device().broken_captures(), 0);
}

// Kernels that fill the device, of sets that share ranks, after gradients that are late: if two
// devices run them in unlike orders, each waits for the other, and both fail.
TEST_F(GpuSession, SetsEnterAllDevicesInOneOrder) {
  test::HostGpuLibraries::Options options;
  options.nccl.fills_device = true;
  start(options);
  const Floats before = floats(10, mine());
  const Handle earlier = allreduce({}, "before the sets", before);
  std::vector<ProcessSet> mine_of = {ProcessSet()};
  for (int bits = 3; bits < 1 << test_size(); ++bits) {
    const ProcessSet set = add_process_set(ranks_of_bits(bits));
    if (set.includes_me()) mine_of.push_back(set);
  }
  (void)earlier->get();
  EXPECT_THAT(*before, AllAre(sum_of({})));
  std::mt19937 random(static_cast<uint32_t>(rank()) + 1);
  const auto cuda = ops::gpu()->cuda();
  std::array<ops::CudaQueue, 3> programs = {ops::CudaQueue(cuda), ops::CudaQueue(cuda),
                                            ops::CudaQueue(cuda)};
  for (int round = 0; round < 5; ++round) {
    std::shuffle(mine_of.begin(), mine_of.end(), random);
    std::vector<std::pair<Handle, Floats>> running;
    for (const ProcessSet& set : mine_of) {
      for (const char* name : {"a", "b", "c"}) {
        const Floats data = floats(9000, mine());
        ops::CudaQueue& program = programs[random() % programs.size()];
        write_late(program, std::chrono::microseconds(random() % 3000));
        Submission given = submission_of(
            set, name, spec_of(CollectiveKind::Allreduce, data->size(), DeviceKind::Cuda), data);
        given.ready = std::make_unique<ops::CudaEvent>(cuda, program.stream());
        running.emplace_back(ops::runtime().submit(std::move(given)), data);
      }
    }
    for (size_t i = 0; i < running.size(); ++i) {
      (void)running[i].first->get();
      ASSERT_THAT(*running[i].second, AllAre(sum_of(mine_of[i / 3])));
    }
  }
}

// A user who insists on NCCL gets no collective of the host.
TEST_F(GpuSession, WhatNcclCantDoFailsTheCallAlone) {
  start({}, {{"HORON_GPU_COLLECTIVES", "nccl"}});
  auto spec = spec_of(CollectiveKind::Allreduce, 10, DeviceKind::Cuda);
  spec->dtype = DataType::Int16;
  const Floats data = floats(5, mine());  // ten numbers of 16 bits
  EXPECT_THAT(error_of([&] {
                Submission given = submission_of({}, "short", spec, data);
                given.memory.front().count = 10;
                return ops::runtime().submit(std::move(given));
              }),
              AllOf(HasSubstr("tensor \"short\""), HasSubstr("NCCL has no int16")));
  EXPECT_EQ(error_of([&] { return allreduce({}, "next", data); }), "");
  EXPECT_THAT(*data, AllAre(sum_of({})));
}

TEST_F(GpuSession, RanksThatHaveJoinedAddNothing) {
  start();
  if (rank() == 0 && size() > 1) {
    EXPECT_GE(join(), 0);
    return;
  }
  const Floats data = floats(50, mine());
  (void)allreduce({}, "late", data)->get();
  EXPECT_THAT(*data, AllAre(sum_of({}) - (size() > 1 ? 1.0F : 0.0F)));
  EXPECT_GE(join(), 0);
}

TEST_F(GpuSession, ASecondJobOpensItsOwn) {
  for (int job = 0; job < 2; ++job) {
    start();
    const Floats data = floats(50, mine());
    (void)allreduce({}, "x", data)->get();
    EXPECT_THAT(*data, AllAre(sum_of({})));
    shutdown();
  }
}

// The CPU tensors of such a job are reduced as usual.
TEST_F(GpuSession, RanksWithAndWithoutGpusAreTold) {
  if (test_size() < 2) return;
  test::HostGpuLibraries::Options options;
  options.devices = test_rank() == 1 ? 0 : 8;
  start(options);
  const Floats data = floats(50, mine());
  const std::string error = error_of([&] { return allreduce({}, "x", data); });
  EXPECT_THAT(error, HasSubstr("tensor \"x\": it is in cuda memory"));
  if (ops::gpu()->mixed({0, 1})) {
    EXPECT_EQ(ops::gpu()->unavailable(), "");
    EXPECT_THAT(error, HasSubstr("its spec must say Host"));
  } else {
    EXPECT_THAT(ops::gpu()->unavailable(),
                HasSubstr("rank 1 has no GPU (this host plays no GPU), the others have one: "
                          "make a process set of the ranks with a GPU"));
    EXPECT_THAT(error, HasSubstr(ops::gpu()->unavailable() + "); move it to the host"));
  }
  EXPECT_EQ(error_of([&] { return allreduce({}, "y", data, DeviceKind::Host); }), "");
}

// One rank has no GPU, say a simulation; the others train on theirs.
TEST_F(GpuSession, AProcessSetOfRanksWithGpusUsesThem) {
  if (test_size() < 3) return;
  test::HostGpuLibraries::Options options;
  options.devices = test_rank() == 0 ? 0 : 8;
  start(options);
  std::vector<int> others(static_cast<size_t>(size() - 1));
  std::iota(others.begin(), others.end(), 1);
  const ProcessSet gpus = add_process_set(others);
  const ProcessSet mixed = add_process_set({0, 1});
  const Floats together = floats(50, mine());
  for (int round = 0; round < 3; ++round) {
    const Floats data = floats(3000, mine());
    if (gpus.includes_me()) {
      const Handle on_host = allreduce(gpus, "host", floats(10, mine()), DeviceKind::Host);
      (void)allreduce(gpus, "x", data)->get();
      (void)on_host->get();
      EXPECT_THAT(*data, AllAre(sum_of(gpus)));
    }
    const Floats all = floats(10, mine());
    (void)allreduce({}, "world", all, DeviceKind::Host)->get();
    EXPECT_THAT(*all, AllAre(sum_of({})));
  }
  if (mixed.includes_me()) {
    const std::string error = error_of([&] { return allreduce(mixed, "x", together); });
    const bool copied = ops::gpu()->mixed({0, 1});
    EXPECT_THAT(error, HasSubstr(copied ? "its spec must say Host" : "rank 0 has no GPU"));
  }
  remove_process_set(mixed);
  remove_process_set(gpus);
}

TEST_F(GpuSession, AFailureOfNcclIsEverybodysError) {
  if (test_size() < 2) return;
  test::HostGpuLibraries::Options options;
  if (test_rank() == 1) options.nccl.fails_at_group = 2;
  start(options);
  const core::Topology& topology = ops::runtime().topology();
  if (topology.size > 1 && topology.host_count() == topology.size)
    return;  // nothing for NCCL to do
  std::string error;
  for (int round = 0; round < 1000 && error.empty(); ++round) {
    error = error_of([&] { return allreduce({}, "x", floats(50, mine())); });
  }
  EXPECT_THAT(error, AllOf(HasSubstr("rank 1: collective of \"x\" failed"),
                           HasSubstr("the NCCL of threads has failed")));
}

}  // namespace
}  // namespace horon::gpu_session
