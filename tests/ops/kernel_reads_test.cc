// How often ranks ask whether the kernel can copy their memory. Threads of one process copy by
// themselves, so these are the only reads by the kernel.
#include <atomic>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/host/local_group.h"
#include "horon/ops/host/block_exchange.h"
#include "horon/tests/support/thread_ranks.h"

namespace {

std::atomic<int> kernel_reads = 0;

}  // namespace

extern "C" ssize_t process_vm_readv(pid_t process, const iovec* here, size_t here_count,
                                    const iovec* there, size_t there_count, size_t flags) noexcept {
  ++kernel_reads;
  return syscall(SYS_process_vm_readv, process, here, here_count, there, there_count, flags);
}

namespace horon::ops {
namespace {

TEST(KernelReads, AreOneForAllBlocks) {
  constexpr int kRanks = 5;
  constexpr int64_t kCount = 16 << 10;
  core::InProcessJob job(kRanks);
  kernel_reads = 0;
  core::run_ranks(kRanks, [&](int rank) {
    const auto group = core::LocalGroup::create(job.of(rank), BlockExchange::area_bytes(kRanks),
                                                core::LocalGroup::ProcessCopies::IfAllowed);
    BlockExchange exchange(*group, group->area(), true);
    const std::vector<float> input(kRanks * kCount, static_cast<float>(rank));
    std::vector<std::vector<float>> outputs(kRanks, std::vector<float>(kCount));
    core::Batch batch;
    batch.kind = CollectiveKind::Alltoall;
    batch.send_counts = batch.receive_counts = std::vector<int64_t>(kRanks, kCount);
    batch.count = kRanks * kCount;
    batch.input = reinterpret_cast<const std::byte*>(input.data());
    for (std::vector<float>& output : outputs) {
      batch.output_blocks.push_back(reinterpret_cast<std::byte*>(output.data()));
    }
    const auto flight = exchange.start(std::move(batch));
    while (flight->step() != core::Progress::Done) std::this_thread::yield();
    for (size_t from = 0; from < kRanks; ++from) {
      EXPECT_EQ(outputs[from], std::vector<float>(kCount, static_cast<float>(from)));
    }
    core::allgather_values(job.of(rank), core::Bootstrap::Among::Job, rank);  // all have ended
  });
  EXPECT_EQ(kernel_reads, 2 * kRanks);  // of the input, and of the blocks of the output
}

}  // namespace
}  // namespace horon::ops
