// The window of one communicator, whose ranks are threads: who makes it when, and its end.
#include "horon/ops/nccl/nccl_window.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/nccl/nccl_line.h"
#include "horon/tests/support/host_gpu/host_nccl.h"
#include "horon/tests/support/long_enough.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::ops {
namespace {

using core::Progress;
constexpr size_t kBytes = 4 << 20;

// The elementwise maximum of bytes, among ranks that are threads.
struct Ballots {
  std::mutex mutex;
  std::vector<std::vector<uint8_t>> largest;  // of each round
  std::vector<int> voters;
};

class ThreadMaximum final : public core::CollectiveOp {
 public:
  ThreadMaximum(std::shared_ptr<Ballots> ballots, int ranks)
      : ballots_(std::move(ballots)), ranks_(ranks) {}
  std::string_view name() const override { return "maximum_of_threads"; }
  std::string refusal(const core::BatchFacts& /*facts*/) const override { return ""; }
  std::unique_ptr<core::InFlight> start(core::Batch batch) override {
    const std::lock_guard lock(ballots_->mutex);
    if (round_ == ballots_->largest.size()) {
      ballots_->largest.emplace_back(static_cast<size_t>(batch.count));
      ballots_->voters.push_back(0);
    }
    std::vector<uint8_t>& largest = ballots_->largest[round_];
    const auto* const mine = reinterpret_cast<const uint8_t*>(batch.input);
    for (size_t i = 0; i < largest.size(); ++i) largest[i] = std::max(largest[i], mine[i]);
    ++ballots_->voters[round_];
    return std::make_unique<Flight>(*this, round_++, batch.output);
  }

 private:
  class Flight final : public core::InFlight {
   public:
    Flight(ThreadMaximum& op, size_t round, std::byte* output)
        : op_(op), round_(round), output_(output) {}
    Progress step() override {
      const std::lock_guard lock(op_.ballots_->mutex);
      if (op_.ballots_->voters[round_] < op_.ranks_) return Progress::Polling;
      const std::vector<uint8_t>& largest = op_.ballots_->largest[round_];
      std::copy(largest.begin(), largest.end(), reinterpret_cast<uint8_t*>(output_));
      return Progress::Done;
    }

   private:
    ThreadMaximum& op_;
    const size_t round_;
    std::byte* const output_;
  };
  const std::shared_ptr<Ballots> ballots_;
  const int ranks_;
  size_t round_ = 0;
};

struct Rank {
  Rank(int index, int size, const std::shared_ptr<Ballots>& ballots,
       const test::HostNccl::Options& library = {},
       std::chrono::nanoseconds window_limit = std::chrono::seconds(60))
      : cuda(std::make_shared<test::HostCuda>()),
        nccl(std::make_shared<test::HostNccl>(cuda, library)),
        queue(cuda),
        maximum(ballots, size) {
    NcclCommunicator::Parts parts;
    parts.gpu = std::make_shared<JobGpu>(cuda, nccl);
    parts.size = size;
    parts.rank = index;
    parts.id_exchange = std::make_unique<AllreduceNcclId>(maximum, index == 0);
    parts.vote = std::make_unique<MembersVote>(maximum);
    parts.window_bytes = kBytes;
    parts.window_limit = window_limit;
    line = std::make_shared<NcclLine>(std::make_shared<NcclCommunicator>(std::move(parts)));
  }

  // Does what a batch does that asks for the window.
  core::SharedScratch* batch(size_t bytes = kBytes) {
    core::SharedScratch* const scratch = line->shared_scratch(bytes);
    const uint64_t turn = line->take_turn();
    while (!line->may_call(turn)) {
      line->communicator().check();  // as batches do that are still watched
      std::this_thread::yield();
    }
    float* const data = scratch != nullptr ? reinterpret_cast<float*>(scratch->memory) : &own;
    cuda->enqueue(queue.stream(), [data] {
      *data = 1.0F;
      return true;
    });
    line->call(queue, [&](NcclApi& api, NcclComm comm) {
      auto* const bytes_of_data = reinterpret_cast<std::byte*>(data);
      api.allreduce(comm, bytes_of_data, bytes_of_data, 1, DataType::Float32, ReduceOp::Sum,
                    queue.stream());
    });
    while (!line->is_enqueued()) std::this_thread::yield();
    cuda->enqueue(queue.stream(), [this, data] {
      sum = *data;
      return true;
    });
    if (scratch != nullptr) scratch->last_used = queue.record();
    return scratch;
  }

  float own = 0;
  std::atomic<float> sum{0};
  const std::shared_ptr<test::HostCuda> cuda;
  const std::shared_ptr<test::HostNccl> nccl;
  CudaQueue queue;
  ThreadMaximum maximum;
  std::shared_ptr<NcclLine> line;
};

TEST(NcclWindow, TheFirstBatchMakesItForTheNext) {
  const auto ballots = std::make_shared<Ballots>();
  core::run_ranks(3, [&](int index) {
    test::HostNccl::Options library;
    library.busy_polls = index;
    Rank rank(index, 3, ballots, library);
    EXPECT_EQ(rank.batch(kBytes + 1), nullptr);  // it would be too small
    EXPECT_EQ(rank.nccl->windows().live(), 0);
    EXPECT_EQ(rank.batch(), nullptr);
    const core::SharedScratch* const scratch = rank.batch();
    ASSERT_NE(scratch, nullptr);
    EXPECT_EQ(scratch->bytes, kBytes);
    EXPECT_EQ(rank.batch(1), scratch);
    EXPECT_EQ(rank.batch(kBytes + 1), nullptr);
    EXPECT_EQ(rank.line->communicator().window().bytes_max(), kBytes);
    rank.queue.record()->wait();
    EXPECT_EQ(rank.sum, 3.0F);
    rank.line.reset();
    EXPECT_EQ(rank.nccl->windows().live(), 0);
    EXPECT_THAT(rank.nccl->windows().complaints(), testing::IsEmpty());
  });
}

// A call of NCCL that never ends on one rank, while the others answer.
TEST(NcclWindow, ARegistrationThatTakesTooLongHasFailed) {
  const auto ballots = std::make_shared<Ballots>();
  core::run_ranks(2, [&](int index) {
    test::HostNccl::Options library;
    if (index == 1) library.window_fault = test::WindowFault::Hangs;
    Rank rank(index, 2, ballots, library, std::chrono::milliseconds(500));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(rank.batch(), nullptr);
    EXPECT_EQ(rank.line->communicator().window().bytes_max(), 0U);
    if (index == 1) {
      EXPECT_EQ(rank.line->communicator().window().failure(),
                "NCCL has not registered it within 0.5 s");
    }
    rank.queue.record()->wait();
    EXPECT_EQ(rank.sum, 2.0F);
  });
}

// An abort would end work that is still in flight.
TEST(NcclWindow, WhereItFailsEarlierWorkEndsFirst) {
  const auto ballots = std::make_shared<Ballots>();
  core::run_ranks(2, [&](int index) {
    test::HostNccl::Options library;
    if (index == 0) library.window_fault = test::WindowFault::Fails;
    Rank rank(index, 2, ballots, library);
    rank.cuda->slow_down([](CudaStream) { return true; }, 50'000);
    rank.batch(kBytes + 1);
    std::atomic<float> seen{0};
    rank.cuda->enqueue(rank.queue.stream(), [&] {
      seen = rank.own;
      return true;
    });
    rank.batch();
    rank.queue.record()->wait();
    EXPECT_EQ(seen, 2.0F);
    EXPECT_EQ(rank.sum, 2.0F);
  });
}

TEST(NcclWindow, AFailureBeforeItIsRegisteredIsThatOfTheJob) {
  const auto ballots = std::make_shared<Ballots>();
  std::atomic<bool> goes_on{false};  // outlives the stream
  Rank rank(0, 1, ballots);
  rank.cuda->enqueue(rank.queue.stream(), [&] { return goes_on.load(); });
  rank.batch(kBytes + 1);
  EXPECT_EQ(rank.line->shared_scratch(kBytes), nullptr);
  const uint64_t turn = rank.line->take_turn();
  EXPECT_FALSE(rank.line->may_call(turn));  // earlier work must be done first
  rank.nccl->fail();
  EXPECT_THROW(rank.line->communicator().check(), Error);
  EXPECT_THROW((void)rank.line->may_call(turn), Error);
  goes_on = true;
}

TEST(NcclWindow, TheEndWaitsForWorkThatUsesIt) {
  const auto ballots = std::make_shared<Ballots>();
  Rank rank(0, 1, ballots);
  rank.batch();
  core::SharedScratch* const scratch = rank.batch();
  ASSERT_NE(scratch, nullptr);
  std::atomic<bool> read{false};
  rank.cuda->enqueue(rank.queue.stream(), [&, memory = scratch->memory] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    read = *memory != std::byte{1};  // where it has been freed, this ends the process
    return true;
  });
  scratch->last_used = rank.queue.record();
  rank.line.reset();
  EXPECT_TRUE(read);
  EXPECT_EQ(rank.nccl->windows().live(), 0);
  EXPECT_THAT(rank.nccl->windows().complaints(), testing::IsEmpty());
}

TEST(NcclWindow, WhatMayBeUsedForEverIsKept) {
  const auto ballots = std::make_shared<Ballots>();
  Rank rank(0, 1, ballots);
  rank.batch();
  core::SharedScratch* const scratch = rank.batch();
  ASSERT_NE(scratch, nullptr);
  rank.queue.record()->wait();
  ++scratch->users;  // a batch that has failed in the middle of its work
  rank.line->communicator().abort();
  const auto limit = std::chrono::steady_clock::now() + kLongEnough;
  rank.line->communicator().finish_abort(limit);
  rank.line.reset();
  EXPECT_EQ(rank.nccl->windows().live(), 1);
  EXPECT_THAT(rank.nccl->windows().complaints(), testing::IsEmpty());
}

TEST(NcclWindow, WhatNothingUsesIsFreedByAnAbort) {
  const auto ballots = std::make_shared<Ballots>();
  Rank rank(0, 1, ballots);
  rank.batch();
  ASSERT_NE(rank.batch(), nullptr);
  rank.queue.record()->wait();
  rank.line->communicator().abort();
  const auto limit = std::chrono::steady_clock::now() + kLongEnough;
  rank.line->communicator().finish_abort(limit);
  EXPECT_EQ(rank.nccl->windows().live(), 0);
}

TEST(NcclWindow, OneThatIsBeingMadeEndsWithTheCommunicator) {
  const auto ballots = std::make_shared<Ballots>();
  core::run_ranks(2, [&](int index) {
    Rank rank(index, 2, ballots);
    while (!rank.line->communicator().is_ready()) std::this_thread::yield();
    if (index == 0) {
      EXPECT_EQ(rank.line->shared_scratch(kBytes), nullptr);
      const uint64_t turn = rank.line->take_turn();
      while (rank.nccl->windows().live() == 0) EXPECT_FALSE(rank.line->may_call(turn));
      EXPECT_FALSE(rank.line->may_call(turn));  // the other member does not answer
    }
    rank.line->communicator().abort();
    EXPECT_THROW((void)rank.line->communicator().is_ready(), Error);
    rank.line.reset();
    // A separate thread aborts the communicator, and frees what it has.
    const auto limit = std::chrono::steady_clock::now() + kLongEnough;
    while (rank.nccl->windows().live() > 0 && std::chrono::steady_clock::now() < limit) {
      std::this_thread::yield();
    }
    EXPECT_EQ(rank.nccl->windows().live(), 0);
  });
}

}  // namespace
}  // namespace horon::ops
