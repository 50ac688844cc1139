// The window of a communicator, with the NCCL and the CUDA of the Gpu that this program is linked
// with: it is registered, sums in it are right, and it ends. Rank 0 prints what there is.
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/execution/finished_flight.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/nccl/nccl_ops.h"
#include "horon/tests/ops/mpi_world.h"
#include "horon/tests/support/gpu/gpu.h"

namespace horon::ops {
namespace {

constexpr size_t kBytes = 8 << 20;

// The elementwise maximum of bytes, by a call that blocks.
class MpiMaximum final : public core::CollectiveOp {
 public:
  std::string_view name() const override { return "maximum"; }
  std::string refusal(const core::BatchFacts& /*facts*/) const override { return ""; }
  std::unique_ptr<core::InFlight> start(core::Batch batch) override {
    MPI_Allreduce(MPI_IN_PLACE, batch.output, static_cast<int>(batch.count), MPI_UINT8_T, MPI_MAX,
                  MPI_COMM_WORLD);
    return std::make_unique<core::FinishedFlight>();
  }
};

struct Rank {
  Rank(std::unique_ptr<test::Gpu> its_gpu, World its_world)
      : gpu(std::move(its_gpu)),
        world(std::move(its_world)),
        nccl(gpu->open_nccl()),
        queue(gpu->cuda()) {
    NcclCommunicator::Parts parts;
    parts.gpu = std::make_shared<JobGpu>(gpu->cuda(), nccl);
    parts.size = world.size;
    parts.rank = world.rank;
    parts.id_exchange = std::make_unique<AllreduceNcclId>(maximum, world.rank == 0);
    parts.vote = std::make_unique<MembersVote>(maximum);
    parts.window_bytes = kBytes;
    line = std::make_shared<NcclLine>(std::make_shared<NcclCommunicator>(std::move(parts)));
    ops = make_nccl_ops(line);
  }

  // Small whole numbers, that differ between ranks and places.
  float input(size_t i) const {
    return static_cast<float>(i % 64) + static_cast<float>(world.rank);
  }
  float sum(size_t i) const {
    const auto ranks = static_cast<float>(world.size);
    return ranks * static_cast<float>(i % 64) + ranks * (ranks - 1) / 2;
  }

  // Makes one allreduce, as for a batch that all ranks pack. True: its data was in the window.
  bool reduce(size_t count) {
    const size_t bytes = count * sizeof(float);
    core::SharedScratch* const window = ops.front()->shared_scratch(bytes);
    const std::shared_ptr<std::byte> other = window == nullptr ? queue.allocate(bytes) : nullptr;
    std::byte* const memory = window == nullptr ? other.get() : window->memory;
    const auto host = gpu->common_memory(bytes);
    auto* const values = reinterpret_cast<float*>(host.get());
    for (size_t i = 0; i < count; ++i) values[i] = input(i);
    queue.copy_stretch(memory, host.get(), bytes);
    core::Batch batch;
    batch.device = DeviceKind::Cuda;
    batch.input = batch.output = memory;
    batch.count = static_cast<int64_t>(count);
    batch.queue = &queue;
    const auto flight = ops.front()->start(batch);
    while (flight->step() != core::Progress::Done) std::this_thread::yield();
    queue.copy_stretch(host.get(), memory, bytes);
    const auto done = queue.record();
    if (window != nullptr) window->last_used = done;
    done->wait();
    size_t wrong = 0;
    for (size_t i = 0; i < count; ++i) wrong += values[i] != sum(i) ? 1 : 0;
    EXPECT_EQ(wrong, 0U) << count << " elements";
    return window != nullptr;
  }

  MpiMaximum maximum;
  const std::unique_ptr<test::Gpu> gpu;
  const World world;
  const std::shared_ptr<NcclApi> nccl;
  CudaQueue queue;
  std::shared_ptr<NcclLine> line;
  std::vector<std::unique_ptr<core::CollectiveOp>> ops;
};

TEST(NcclWindowOnDevice, IsRegisteredUsedAndGivenBack) {
  World world = mpi_world();
  std::string why_none;
  auto gpu = test::open_gpu(world.rank, test::Needs::CudaAndNccl, why_none);
  if (gpu == nullptr) GTEST_SKIP() << "no GPU: " << why_none;
  Rank rank(std::move(gpu), std::move(world));
  bool in_window = rank.reduce(1000);
  EXPECT_FALSE(in_window);  // this one makes it
  for (const size_t count : {1, 1000, 65'536, 1'000'003, 2'097'152}) {
    in_window = rank.reduce(count);
  }
  EXPECT_FALSE(rank.reduce(kBytes / sizeof(float) + 1));
  rank.reduce(77);
  // Between ranks that share a GPU NCCL may refuse it.
  if (rank.world.size == 1) {
    EXPECT_EQ(in_window, rank.nccl->has_windows());
  }
  const uint64_t mine = in_window ? 1 : 0;
  for (const uint64_t theirs : rank.world.gather(mine)) EXPECT_EQ(theirs, mine);
  if (rank.world.rank == 0) {
    std::printf("NCCL %d: %s\n", rank.nccl->version(),
                in_window                  ? "the window is registered"
                : rank.nccl->has_windows() ? "there is no window"
                                           : "it is too old for windows");
    std::fflush(stdout);
  }
  rank.ops.clear();
  rank.line.reset();  // ends the communicator, and frees the window
  rank.queue.record()->wait();
}

}  // namespace
}  // namespace horon::ops
