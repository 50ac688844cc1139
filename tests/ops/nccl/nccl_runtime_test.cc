// The whole runtime on the classes for GPUs: ranks that are threads, on the CUDA and the NCCL of
// the host.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/ops/cuda/cuda_event.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/nccl/nccl_ops.h"
#include "horon/ops/plan_barrier.h"
#include "horon/tests/core/runtime/runtime_world.h"
#include "horon/tests/support/host_gpu/host_nccl.h"

namespace horon::ops {
namespace {

using core::HandleState;
using core::Runtime;
using core::Submission;
using core::test_world::error_of;
using core::test_world::Tensor;
using core::test_world::World;
using Handles = std::vector<std::shared_ptr<HandleState>>;

// One device for each rank, and a communicator for each set.
class Gpus {
 public:
  explicit Gpus(int ranks, test::HostCuda::Options options = {}, test::HostNccl::Options nccl = {})
      : nccl_(nccl) {
    for (int rank = 0; rank < ranks; ++rank) {
      ++options.seed;
      devices_.push_back(std::make_shared<test::HostCuda>(0, options));
    }
  }

  test::HostCuda& device(int rank) { return *devices_[static_cast<size_t>(rank)]; }
  const std::shared_ptr<test::HostCuda>& shared_device(int rank) {
    return devices_[static_cast<size_t>(rank)];
  }

  core::test_world::Hooks hooks() {
    core::test_world::Hooks hooks;
    hooks.change_execution = [this](int rank, const std::vector<int>& ranks,
                                    core::Executor::Parts& execution) {
      const auto& cuda = shared_device(rank);
      const auto nccl = std::make_shared<test::HostNccl>(cuda, nccl_);
      auto ops = make_nccl_ops(std::make_shared<NcclLine>(std::make_shared<NcclCommunicator>(
          nccl, cuda, execution.size, id_of(ranks, *nccl), execution.rank)));
      ops.push_back(std::make_unique<PlanBarrier>());
      execution.ops = std::make_shared<core::OpTable>(std::move(ops), "auto");
      execution.scratch = test::scratch_of(std::make_unique<CudaMemory>(cuda));
    };
    return hooks;
  }

 private:
  NcclUniqueId id_of(const std::vector<int>& ranks, NcclApi& nccl) {
    const std::lock_guard lock(mutex_);
    const auto found = ids_.find(ranks);
    return found != ids_.end() ? found->second
                               : ids_.emplace(ranks, nccl.unique_id()).first->second;
  }

  const test::HostNccl::Options nccl_;
  std::vector<std::shared_ptr<test::HostCuda>> devices_;
  std::mutex mutex_;
  std::map<std::vector<int>, NcclUniqueId> ids_;
};

test::HostCuda::Options late_device() {
  test::HostCuda::Options options;
  options.delay_us_max = 100;
  return options;
}

test::HostNccl::Options busy_library() {
  test::HostNccl::Options options;
  options.busy_polls = 1;
  return options;
}

Tensor cuda_tensor(size_t count) {
  Tensor made = core::test_world::tensor(std::vector<float>(count));
  made.spec->device = DeviceKind::Cuda;
  return made;
}

// Steps of a training: another order on each rank, small tensors that fuse, large ones that do not,
// some compressed, some averaged. The program's stream writes, waits for the results and reads.
void train(Gpus& gpus, Runtime& runtime, int rank, int ranks) {
  constexpr size_t kTensors = 9;
  constexpr int kSteps = 15;
  CudaQueue program(gpus.shared_device(rank));
  std::mt19937 order(static_cast<uint32_t>(rank));
  std::vector<Tensor> x;
  for (size_t i = 0; i < kTensors; ++i) {
    x.push_back(cuda_tensor(i % 3 == 2 ? 20'000 + i : 3 + i));
    if (i % 2 == 0) x[i].spec->reduce_op = ReduceOp::Average;
    if (i % 4 == 3) x[i].spec->compression = Compression::BFloat16;
  }
  std::atomic<int> wrong{0};
  for (int step = 0; step < kSteps; ++step) {
    std::vector<size_t> places(kTensors);
    std::iota(places.begin(), places.end(), size_t{0});
    std::shuffle(places.begin(), places.end(), order);
    Handles handles;
    for (const size_t i : places) {
      gpus.device(rank).enqueue(program.stream(), [&data = x[i].data, step, rank] {
        std::fill(data.begin(), data.end(), static_cast<float>(step + 2 * rank));
        return true;
      });
      Submission given = core::test_world::submission("gradient " + std::to_string(i), x[i]);
      given.ready = std::make_unique<CudaEvent>(gpus.shared_device(rank), program.stream());
      handles.push_back(runtime.submit(std::move(given)));
    }
    for (const auto& handle : handles) ASSERT_TRUE(program.wait_for(*handle->get_enqueued().done));
    gpus.device(rank).enqueue(program.stream(), [&x, &wrong, step, ranks] {
      const auto sum = static_cast<float>(ranks * step + ranks * (ranks - 1));
      for (size_t i = 0; i < kTensors; ++i) {
        const float expected = i % 2 == 0 ? sum / static_cast<float>(ranks) : sum;
        wrong += static_cast<int>(std::count_if(x[i].data.begin(), x[i].data.end(),
                                                [&](float value) { return value != expected; }));
      }
      return true;
    });
  }
  EXPECT_EQ(gpus.device(rank).host_waits(), 0);
  program.record()->wait();
  EXPECT_EQ(wrong, 0);
}

TEST(NcclRuntime, ATrainingWaitsNeverOnTheHost) {
  for (const int ranks : {1, 2, 3}) {
    Gpus gpus(ranks, late_device(), busy_library());
    World world(ranks, {}, core::test_world::no_limits(), gpus.hooks());
    world.each([&](Runtime& runtime, int rank) { train(gpus, runtime, rank, ranks); });
  }
}

TEST(NcclRuntime, ProcessSetsHaveCommunicatorsOfTheirOwn) {
  Gpus gpus(3, late_device());
  World world(3, {}, core::test_world::no_limits(), gpus.hooks());
  world.each([&](Runtime& runtime, int rank) {
    constexpr uint32_t set = 1;
    const auto barrier = [&](const std::string& name) {
      Tensor nothing;
      nothing.spec->kind = CollectiveKind::Barrier;
      nothing.spec->device = DeviceKind::Cuda;
      ASSERT_EQ(error_of(*runtime.submit(core::test_world::submission(name, nothing))), "");
    };
    barrier("add");
    runtime.add_set(set, {0, 2});
    barrier("added");
    Tensor all = cuda_tensor(5);
    Tensor some = cuda_tensor(7);
    std::fill(all.data.begin(), all.data.end(), 1.0F);
    std::fill(some.data.begin(), some.data.end(), 10.0F);
    Handles handles;
    if (rank != 1) {
      Submission in_set = core::test_world::submission("some", some);
      in_set.set = set;
      handles.push_back(runtime.submit(std::move(in_set)));
    }
    handles.push_back(runtime.submit(core::test_world::submission("all", all)));
    for (const auto& handle : handles) EXPECT_EQ(error_of(*handle), "");
    EXPECT_THAT(all.data, testing::Each(3.0F));
    EXPECT_THAT(some.data, testing::Each(rank == 1 ? 10.0F : 20.0F));
  });
}

TEST(NcclRuntime, ADeviceThatFailsEndsTheJobOnAllRanks) {
  Gpus gpus(2);
  gpus.device(1).fail();
  World world(2, {}, core::test_world::no_limits(), gpus.hooks());
  world.each([&](Runtime& runtime, int) {
    const auto lost = std::make_shared<Tensor>(cuda_tensor(5));
    Submission given = core::test_world::submission("lost", *lost);
    given.keep_alive = lost;
    std::string error;
    try {
      error = error_of(*runtime.submit(std::move(given)));
    } catch (const Error& at_once) {  // the job has ended already
      error = at_once.what();
    }
    EXPECT_THAT(error, testing::HasSubstr("the device of threads has failed"));
  });
}

// Batches are enqueued far ahead of the device. Each needs memory for its scaled input, and all of
// them take turns with the same.
TEST(NcclRuntime, ReducescattersAheadOfTheDeviceShareTheirScratch) {
  constexpr size_t kCount = 1000;
  constexpr int kBatches = 8;
  Gpus gpus(2);
  std::atomic<bool> go{false};
  std::vector<std::vector<float>> results(2 * kBatches, std::vector<float>(kCount / 2));
  World world(2, {}, core::test_world::no_limits(), gpus.hooks());
  world.each([&](Runtime& runtime, int rank) {
    CudaQueue program(gpus.shared_device(rank));
    gpus.device(rank).enqueue(program.stream(), [&] { return go.load(); });
    Handles handles;
    std::vector<Tensor> x(kBatches);
    for (int i = 0; i < kBatches; ++i) {
      x[i] = cuda_tensor(kCount);
      std::fill(x[i].data.begin(), x[i].data.end(), static_cast<float>(i + 1));
      x[i].spec->kind = CollectiveKind::Reducescatter;
      x[i].spec->splits = {kCount / 2, kCount / 2};
      x[i].spec->prescale = 0.5;
      Submission given = core::test_world::submission("x" + std::to_string(i), x[i]);
      given.memory.front().output = nullptr;
      given.allocate_output = [&result = results[2 * i + rank]](size_t, int64_t,
                                                                core::MemoryQueue&) {
        return reinterpret_cast<std::byte*>(result.data());
      };
      given.ready = std::make_unique<CudaEvent>(gpus.shared_device(rank), program.stream());
      handles.push_back(runtime.submit(std::move(given)));
    }
    for (const auto& handle : handles) (void)handle->get_enqueued();
    EXPECT_EQ(gpus.device(rank).given_out_max(), kCount * sizeof(float));
    go = true;
    for (const auto& handle : handles) EXPECT_EQ(error_of(*handle), "");
    for (int i = 0; i < kBatches; ++i) {
      EXPECT_THAT(results[2 * i + rank], testing::Each(static_cast<float>(i + 1)));
    }
  });
}

// The end of the group then fails as well, and says less.
TEST(NcclRuntime, ACallThatFailsIsTheErrorOfItsGroup) {
  const auto cuda = std::make_shared<test::HostCuda>();
  const auto nccl = std::make_shared<test::HostNccl>(cuda);
  CudaQueue queue(cuda);
  NcclCommunicator communicator(nccl, cuda, 1, nccl->unique_id(), 0);
  while (!communicator.is_ready()) std::this_thread::yield();
  cuda->fail();
  std::byte data{};
  std::string error;
  try {
    communicator.call([&](NcclApi& calls, NcclComm comm) {
      calls.allreduce(comm, &data, &data, 1, DataType::UInt8, ReduceOp::Sum, queue.stream());
      throw Error(ErrorCode::OperationFailed, "the second call");
    });
  } catch (const Error& failure) {
    error = failure.what();
  }
  EXPECT_EQ(error, "the second call");
}

}  // namespace
}  // namespace horon::ops
