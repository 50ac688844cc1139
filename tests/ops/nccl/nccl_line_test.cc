// Lines of one rank that share a device of threads.
#include "horon/ops/nccl/nccl_line.h"

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/execution/finished_flight.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/tests/support/host_gpu/host_nccl.h"

namespace horon::ops {
namespace {

// The maximum of one member is its number.
class MaximumOfOne final : public core::CollectiveOp {
 public:
  std::string_view name() const override { return "maximum_of_one"; }
  std::string refusal(const core::BatchFacts& /*facts*/) const override { return ""; }
  std::unique_ptr<core::InFlight> start(core::Batch /*batch*/) override {
    return std::make_unique<core::FinishedFlight>();
  }
};

class NcclLineTest : public testing::Test {
 protected:
  static void make_call(NcclLine& line, CudaQueue& queue, float& number) {
    const uint64_t turn = line.take_turn();
    while (!line.may_call(turn)) std::this_thread::yield();
    line.call(queue, [&](NcclApi& nccl, NcclComm comm) {
      auto* const data = reinterpret_cast<std::byte*>(&number);
      nccl.allreduce(comm, data, data, 1, DataType::Float32, ReduceOp::Sum, queue.stream());
    });
    while (!line.is_enqueued()) std::this_thread::yield();
  }

  std::atomic<bool> may_end_{false};  // outlives the streams
  std::array<float, 2> numbers_ = {1, 1};
  const std::shared_ptr<test::HostCuda> cuda_ = std::make_shared<test::HostCuda>();
  const std::shared_ptr<test::HostNccl> nccl_ = std::make_shared<test::HostNccl>(cuda_);
  const std::shared_ptr<NcclCommunicator> communicator_ =
      std::make_shared<NcclCommunicator>(nccl_, cuda_, 1, nccl_->unique_id(), 0);
};

TEST_F(NcclLineTest, AnOrderBeginsBehindWhatWasEnqueuedWithoutOne) {
  CudaQueue queue_of_world(cuda_);
  CudaQueue queue_of_set(cuda_);
  MaximumOfOne maximum;
  const auto order = std::make_shared<LaunchOrder>();
  const auto turn = [&](uint32_t set) {
    return std::make_unique<LaunchTurn>(order, LaunchLine{set}, maximum);
  };
  NcclLine world(communicator_, turn(0), /*ordered=*/false);
  NcclLine set(communicator_, turn(1));
  cuda_->enqueue(queue_of_world.stream(), [this] { return may_end_.load(); });
  make_call(world, queue_of_world, numbers_[0]);
  world.keep_order();
  make_call(set, queue_of_set, numbers_[1]);
  const auto behind = queue_of_set.record();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(behind->happened());
  may_end_ = true;
  behind->wait();
}

// If they ran now on one member, it would wait for others that run them with their graphs.
TEST_F(NcclLineTest, CallsForACaptureThatHasEndedAreRefused) {
  NcclLine line(communicator_);
  CudaQueue captures([this] { return cuda_; }, CudaQueue::Use::Captures);
  EXPECT_THROW(make_call(line, captures, numbers_[0]), Error);
}

}  // namespace
}  // namespace horon::ops
