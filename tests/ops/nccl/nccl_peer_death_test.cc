// A rank that is killed in the middle of its work: the others learn of it, get their streams back,
// and go on without it. Ranks are processes without a launcher that would end them all.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/ops/cuda/cuda_event.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/nccl/nccl_ops.h"
#include "horon/tests/support/gpu/gpu.h"
#include "horon/tests/support/long_enough.h"
#include "horon/tests/support/process_ranks.h"

namespace horon::ops {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

NcclUniqueId share_id(const core::Bootstrap& bootstrap, NcclApi& nccl) {
  const NcclUniqueId mine = nccl.unique_id();
  const auto all =
      bootstrap.allgather(core::Bootstrap::Among::Job, std::string_view(mine.data(), mine.size()));
  NcclUniqueId first{};
  std::copy(all.front().begin(), all.front().end(), first.begin());
  return first;
}

// One communicator with a stream, and memory for its collectives.
class Member {
 public:
  Member(test::Gpu& gpu, std::shared_ptr<NcclApi> nccl, int size, const NcclUniqueId& id, int rank)
      : queue_(gpu.cuda()),
        data_(gpu.common_memory(kCount * sizeof(float))),
        communicator_(
            std::make_shared<NcclCommunicator>(std::move(nccl), gpu.cuda(), size, id, rank)),
        ops_(make_nccl_ops(std::make_shared<NcclLine>(communicator_))) {}

  // A sum of ones; returns when it is in the stream.
  void enqueue() {
    for (size_t i = 0; i < kCount; ++i) values()[i] = 1.0F;
    core::Batch batch;
    batch.device = DeviceKind::Cuda;
    batch.input = data_.get();
    batch.output = data_.get();
    batch.count = kCount;
    batch.queue = &queue_;
    flights_.push_back(ops_.front()->start(batch));
    const auto begin = Clock::now();
    while (flights_.back()->step() != core::Progress::Done) {
      if (Clock::now() - begin > kLongEnough) throw Error(ErrorCode::Internal, "not enqueued");
      std::this_thread::yield();
    }
  }
  float result() {
    queue_.record()->wait();
    return values()[kCount - 1];
  }
  CudaQueue& queue() { return queue_; }
  NcclCommunicator& communicator() { return *communicator_; }
  float* values() { return reinterpret_cast<float*>(data_.get()); }

 private:
  static constexpr size_t kCount = 1 << 20;

  CudaQueue queue_;
  const std::shared_ptr<std::byte> data_;
  const std::shared_ptr<NcclCommunicator> communicator_;
  const std::vector<std::unique_ptr<core::CollectiveOp>> ops_;
  std::vector<std::unique_ptr<core::InFlight>> flights_;
};

// Waits until NCCL reports the dead peer, at most for `limit`. Returns the error, or "nothing".
std::string learn_of_death(NcclCommunicator& communicator, seconds limit) {
  const auto begin = Clock::now();
  try {
    while (Clock::now() - begin < limit) {
      communicator.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

bool survive(const core::ProcessJob& job, const core::ProcessJob& survivors, int rank) {
  constexpr int kRanks = 3;
  setenv("NCCL_HOSTID", ("rank" + std::to_string(rank)).c_str(), 1);
  std::string why_none;
  const auto gpu = test::open_gpu(rank, test::Needs::CudaAndNccl, why_none);
  const auto nccl = gpu->open_nccl();
  Member member(*gpu, nccl, kRanks, share_id(job.of(rank), *nccl), rank);
  member.enqueue();
  if (member.result() != kRanks) return false;
  (void)job.of(rank).allgather(core::Bootstrap::Among::Job, "");
  if (rank == kRanks - 1) std::raise(SIGKILL);

  member.enqueue();
  const auto event = member.queue().record();
  auto begin = Clock::now();
  // HostNccl never reports it.
  const std::string told =
      learn_of_death(member.communicator(), seconds(nccl->version() == 0 ? 0 : 10));
  std::printf("rank %d: after %.3f s NCCL says: %s\n", rank, seconds_since(begin), told.c_str());
  begin = Clock::now();
  member.communicator().abort();
  event->wait();
  std::printf("rank %d: abort took %.3f s\n", rank, seconds_since(begin));
  std::fflush(stdout);

  Member again(*gpu, nccl, kRanks - 1, share_id(survivors.of(rank), *nccl), rank);
  again.enqueue();
  return again.result() == kRanks - 1;
}

// In a process of its own: a process that has asked CUDA anything must not fork.
std::string why_no_gpu() {
  const auto ends = core::run_processes(1, [&](int) {
    std::string why_none;
    if (test::open_gpu(0, test::Needs::CudaAndNccl, why_none) != nullptr) return true;
    std::fprintf(stderr, "no GPU: %s\n", why_none.c_str());
    return false;
  });
  return ends == std::vector<int>{0} ? "" : "no GPU (the line above says why)";
}

TEST(NcclPeerDeath, TheOthersAbortAndGoOn) {
  const std::string why_none = why_no_gpu();
  if (!why_none.empty()) GTEST_SKIP() << why_none;
  const core::ProcessJob job(3);
  const core::ProcessJob survivors(2);
  const auto ends = core::run_processes(3, [&](int rank) { return survive(job, survivors, rank); });
  EXPECT_EQ(ends, (std::vector<int>{0, 0, SIGKILL}));
}

}  // namespace
}  // namespace horon::ops
