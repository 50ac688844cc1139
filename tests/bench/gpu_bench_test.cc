// horon-bench's measurement on memory of GPUs, on the CUDA and the NCCL of the host.
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/bench/gpu_memory.h"
#include "horon/bench/measure.h"
#include "horon/bench/report.h"
#include "horon/core/base/error.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/tests/support/host_gpu/host_gpu_libraries.h"

namespace horon::bench {

namespace {

// Its device's memory is memory of the host.
class ThreadGpuMemory final : public GpuMemory {
 public:
  explicit ThreadGpuMemory(std::shared_ptr<ops::CudaApi> cuda) : cuda_(std::move(cuda)) {}
  std::shared_ptr<std::byte> allocate(size_t bytes) override {
    return {cuda_->allocate(bytes), [cuda = cuda_](std::byte* memory) { cuda->free(memory); }};
  }
  void write(std::byte* to, const std::byte* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
  }
  void read(std::byte* to, const std::byte* from, size_t bytes) override {
    std::memcpy(to, from, bytes);
  }

 private:
  const std::shared_ptr<ops::CudaApi> cuda_;
};

}  // namespace

std::unique_ptr<GpuMemory> open_gpu_memory(const std::shared_ptr<ops::CudaApi>& cuda) {
  return std::make_unique<ThreadGpuMemory>(cuda);
}

namespace {

class GpuBench : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    test::HostGpuLibraries::install({});
    init_session();
  }
  static void TearDownTestSuite() { shutdown(); }

  static Options options_of(CollectiveKind kind) {
    Options options;
    options.device = DeviceKind::Cuda;
    options.collective = kind;
    options.bytes_min = 1024;
    options.bytes_max = 64 << 10;
    options.step_factor = 64;
    options.iters = 2;
    options.warmup_iters = 1;
    return options;
  }
};

TEST_F(GpuBench, ResultsAreRightForAllKinds) {
  MpiPeer mpi;
  for (const CollectiveKind kind :
       {CollectiveKind::Allreduce, CollectiveKind::Broadcast, CollectiveKind::Allgather,
        CollectiveKind::Reducescatter, CollectiveKind::Alltoall, CollectiveKind::Gather,
        CollectiveKind::Scatter}) {
    const Options options = options_of(kind);
    Measurement measurement(options, {}, ops::runtime(), mpi, nullptr);
    for (const int64_t bytes : options.sizes()) {
      const Row row = measurement.run(bytes);
      EXPECT_EQ(row.out_of_place->wrong, 0) << to_string(kind) << ' ' << bytes;
      EXPECT_GT(row.out_of_place->horon.median_s, 0);
      if (!row.in_place) continue;
      EXPECT_EQ(row.in_place->wrong, 0) << to_string(kind) << ' ' << bytes;
    }
  }
}

TEST_F(GpuBench, TheHeaderNamesTheDevice) {
  MpiPeer mpi;
  const std::string header = header_text(options_of(CollectiveKind::Allreduce), {}, mpi);
  EXPECT_THAT(header, testing::HasSubstr("cuda memory"));
  EXPECT_THAT(header, testing::HasSubstr("a device made of threads"));
}

}  // namespace
}  // namespace horon::bench
