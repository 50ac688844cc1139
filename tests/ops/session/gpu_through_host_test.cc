// Collectives of tensors on GPUs through the memory of the host.
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/execution/chunk_plan.h"
#include "horon/ops/cuda/cuda_event.h"
#include "horon/tests/ops/session/gpu_session_support.h"

namespace horon::gpu_session {
namespace {

using testing::HasSubstr;

using GpuThroughHost = GpuSession;

TEST_F(GpuThroughHost, WhereRanksShareAGpu) {
  test::HostGpuLibraries::Options options;
  start(options);
  const bool one_rank_each = ops::runtime().topology().host_count() == test_size();
  shutdown();
  if (one_rank_each) return;
  options.devices = 1;
  options.bus = "0000:3B:00.0";
  start(options, {{"HORON_GPU_COLLECTIVES", "nccl"}});
  EXPECT_THAT(error_of([&] { return allreduce({}, "x", floats(50, mine())); }),
              HasSubstr("share the GPU at 0000:3B:00.0"));
  shutdown();
  start(options);
  EXPECT_THAT(ops::gpu()->nccl_unavailable(), HasSubstr("share the GPU at 0000:3B:00.0"));
  const Floats data = floats(50, mine());
  EXPECT_EQ(error_of([&] { return allreduce({}, "x", data); }), "");
  EXPECT_THAT(*data, testing::Each(sum_of({})));
  EXPECT_EQ(libraries_->opened_nccl(), nullptr);
  shutdown();
  options.nccl_host_id = std::to_string(test_rank());
  start(options);
  EXPECT_TRUE(ops::gpu()->uses_nccl());
  EXPECT_EQ(error_of([&] { return allreduce({}, "x", floats(50, mine())); }), "");
}

// What the host does on copies of tensors, and what it does where they lie, use the same cells of
// shared memory: both keep the order of the log, whichever tensors are ready first.
TEST_F(GpuThroughHost, CopiesAndTensorsOfTheHostKeepOneOrder) {
  start({}, {{"HORON_GPU_COLLECTIVES", "host"}});
  const auto cuda = ops::gpu()->cuda();
  ops::CudaQueue program(cuda);
  for (int round = 0; round < 20; ++round) {
    std::vector<Floats> all;
    std::vector<Handle> handles;
    for (int i = 0; i < 8; ++i) {
      const size_t count = i % 4 < 2 ? 100 : 50000;
      all.push_back(floats(count, mine() * static_cast<float>(i + 1)));
      const DeviceKind kind = i % 2 == 0 ? DeviceKind::Cuda : DeviceKind::Host;
      auto spec = spec_of(CollectiveKind::Allreduce, count, kind);
      spec->piece_bytes = core::ChunkPlan::kBytesLeast;  // the long ones go in chunks
      Submission submission =
          submission_of({}, "x" + std::to_string(i), std::move(spec), all.back());
      if (kind == DeviceKind::Cuda) {
        write_late(program, std::chrono::microseconds((rank() * 131 + i * 57 + round * 31) % 300));
        submission.ready = std::make_unique<ops::CudaEvent>(cuda, program.stream());
      }
      handles.push_back(ops::runtime().submit(std::move(submission)));
    }
    for (size_t i = 0; i < handles.size(); ++i) {
      (void)handles[i]->get();
      EXPECT_THAT(*all[i], testing::Each(sum_of({}) * static_cast<float>(i + 1))) << i;
    }
  }
}

}  // namespace
}  // namespace horon::gpu_session
