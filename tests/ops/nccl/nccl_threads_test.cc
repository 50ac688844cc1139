// NCCL communicators of ranks that are threads: order, failures and ends.
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/ops/cuda/cuda_event.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/nccl/nccl_ops.h"
#include "horon/tests/support/host_gpu/host_nccl.h"
#include "horon/tests/support/long_enough.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::ops {
namespace {

using core::Progress;

struct Rank {
  explicit Rank(int index, int size, const NcclUniqueId& id, test::HostCuda::Options device = {},
                test::HostNccl::Options library = {})
      : cuda(std::make_shared<test::HostCuda>(0, device)),
        memory(cuda),
        communicator(std::make_shared<NcclCommunicator>(
            std::make_shared<test::HostNccl>(cuda, library), cuda, size, id, index)),
        allreduce(std::move(make_nccl_ops(std::make_shared<NcclLine>(communicator)).front())) {}

  CudaQueue& queue() { return static_cast<CudaQueue&>(memory.queue()); }
  std::unique_ptr<core::InFlight> start(std::vector<float>& data, double prescale = 1.0) {
    core::Batch batch;
    batch.device = DeviceKind::Cuda;
    batch.prescale = prescale;
    batch.input = reinterpret_cast<const std::byte*>(data.data());
    batch.output = reinterpret_cast<std::byte*>(data.data());
    batch.count = static_cast<int64_t>(data.size());
    batch.queue = &memory.queue();
    return allreduce->start(batch);
  }
  static void enqueue(core::InFlight& flight) {
    while (flight.step() != Progress::Done) std::this_thread::yield();
  }

  const std::shared_ptr<test::HostCuda> cuda;
  CudaMemory memory;
  const std::shared_ptr<NcclCommunicator> communicator;
  const std::unique_ptr<core::CollectiveOp> allreduce;
};

// Its collectives return `progress` in their first `steps` steps, and are done after them.
class Stepped final : public core::CollectiveOp {
 public:
  Stepped(Progress progress, int steps) : progress_(progress), steps_(steps) {}
  std::string_view name() const override { return "stepped"; }
  std::string refusal(const core::BatchFacts& /*facts*/) const override { return ""; }
  std::unique_ptr<core::InFlight> start(core::Batch /*batch*/) override {
    return std::make_unique<Flight>(progress_, steps_);
  }

 private:
  class Flight final : public core::InFlight {
   public:
    Flight(Progress progress, int steps) : progress_(progress), left_(steps) {}
    Progress step() override { return left_-- > 0 ? progress_ : Progress::Done; }

   private:
    const Progress progress_;
    int left_;
  };
  const Progress progress_;
  const int steps_;
};

NcclUniqueId new_id() { return test::HostNccl(std::make_shared<test::HostCuda>()).unique_id(); }

// The program's stream writes a gradient, then the set's stream reduces it, then the program's
// stream reads the result; the host waits for none of it.
float reduced_by_events(bool loses_waits) {
  const NcclUniqueId id = new_id();
  std::atomic<float> sum{0};
  core::run_ranks(2, [&](int index) {
    test::HostCuda::Options device;
    device.delay_us_max = 2000;
    device.seed = static_cast<uint32_t>(index) + 3;
    device.loses_waits = loses_waits;
    Rank rank(index, 2, id, device);
    CudaQueue program(rank.cuda);
    std::vector<float> gradient(1000, 100.0F);
    std::atomic<float> seen{-1};
    for (int step = 0; step < 5; ++step) {
      rank.cuda->enqueue(program.stream(), [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        for (float& value : gradient) value = 1.0F;
        return true;
      });
      const auto written = program.record();
      EXPECT_TRUE(rank.memory.queue().wait_for(*written));
      const auto flight = rank.start(gradient);
      Rank::enqueue(*flight);
      const auto reduced = rank.memory.queue().record();
      EXPECT_TRUE(program.wait_for(*reduced));
      rank.cuda->enqueue(program.stream(), [&] {
        seen = gradient[999];
        return true;
      });
    }
    EXPECT_EQ(rank.cuda->host_waits(), 0);
    program.record()->wait();
    rank.memory.queue().record()->wait();
    if (index == 0) sum = seen.load();
  });
  return sum;
}

TEST(NcclThreads, StreamsAreOrderedByEventsAlone) { EXPECT_EQ(reduced_by_events(false), 2.0F); }

// The test above notices a missing wait.
TEST(NcclThreads, AMissingWaitIsSeen) {
  bool seen = false;
  for (int attempt = 0; attempt < 5 && !seen; ++attempt) seen = reduced_by_events(true) != 2.0F;
  EXPECT_TRUE(seen);
}

TEST(NcclThreads, BatchesCallInTheOrderOfTheirStart) {
  const NcclUniqueId id = new_id();
  core::run_ranks(3, [&](int index) {
    test::HostNccl::Options busy;
    busy.busy_polls = 3;
    Rank rank(index, 3, id, {}, busy);
    std::vector<std::vector<float>> data;
    std::vector<std::unique_ptr<core::InFlight>> flights;
    for (size_t i = 0; i < 8; ++i) data.emplace_back(100 + i, static_cast<float>(i));
    for (auto& each : data) flights.push_back(rank.start(each, 2.0));
    // Stepped from the last to the first, and on each rank another number of times.
    for (size_t left = flights.size(); left > 0;) {
      for (size_t i = flights.size(); i-- > 0;) {
        if (flights[i] == nullptr || flights[i]->step() != Progress::Done) continue;
        flights[i].reset();
        --left;
      }
    }
    rank.memory.queue().record()->wait();
    for (size_t i = 0; i < data.size(); ++i) {
      EXPECT_EQ(data[i], std::vector<float>(100 + i, 6.0F * static_cast<float>(i)));
    }
  });
}

TEST(NcclThreads, AnAbortReleasesWhoWaitsForAPeerThatNeverComes) {
  const NcclUniqueId id = new_id();
  core::run_ranks(2, [&](int index) {
    Rank rank(index, 2, id);
    std::vector<float> data(10, 1.0F);
    if (index == 1) {
      // This rank takes part in making the communicator, and dies.
      while (!rank.communicator->is_ready()) std::this_thread::yield();
      rank.allreduce->abort();
      return;
    }
    const auto flight = rank.start(data);
    Rank::enqueue(*flight);
    const auto event = rank.memory.queue().record();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(event->happened());
    rank.allreduce->abort();
    event->wait();
    EXPECT_THROW(flight->watch(), Error);
    EXPECT_THROW((void)rank.start(data)->step(), Error);
  });
}

TEST(NcclThreads, AFailureOfTheLibraryIsTheBatchesError) {
  const NcclUniqueId id = new_id();
  core::run_ranks(2, [&](int index) {
    test::HostNccl::Options library;
    library.fails_at_group = 1;
    Rank rank(index, 2, id, {}, library);
    std::vector<float> data(10, 1.0F);
    Rank::enqueue(*rank.start(data));
    rank.memory.queue().record()->wait();
    EXPECT_EQ(data[0], 2.0F);
    const auto flight = rank.start(data);
    EXPECT_THROW(Rank::enqueue(*flight), Error);
    rank.allreduce->abort();
  });
}

TEST(NcclThreads, TheEndOfACommunicatorDoesNotWaitForADeadPeer) {
  const NcclUniqueId id = new_id();
  core::run_ranks(2, [&](int index) {
    if (index == 1) return;  // never comes
    const auto begin = std::chrono::steady_clock::now();
    {
      const Rank rank(index, 2, id);
      EXPECT_FALSE(rank.communicator->is_ready());  // begins to make it
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_FALSE(rank.communicator->is_ready());
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kLongEnough);
  });
}

// Each set has a stream of its own; what has entered the device before, by another set, ends first.
TEST(NcclThreads, AStreamWaitsForTheLastEntryOfAnotherSet) {
  LaunchOrder order;
  const auto cuda = std::make_shared<test::HostCuda>();
  CudaQueue of_world(cuda);
  CudaQueue of_set(cuda);
  order.wait_in(of_set, {1});  // nothing has entered
  of_set.record()->wait();
  std::atomic<bool> may_end{false};
  cuda->enqueue(of_world.stream(), [&may_end] { return may_end.load(); });
  order.becomes_last(of_world, {0});
  order.wait_in(of_set, {1});
  const auto behind = of_set.record();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(behind->happened());
  may_end = true;
  behind->wait();
}

TEST(NcclThreads, TheEndOfACommunicatorDoesNotWaitForNcclsOwn) {
  const auto left = std::make_shared<std::atomic<bool>>(false);
  const auto waited_for = std::make_shared<std::atomic<bool>>(false);
  test::HostNccl::Options library;
  library.end_may_return = [left, waited_for,
                            limit = std::chrono::steady_clock::now() + std::chrono::seconds(40)] {
    if (*left) return true;
    *waited_for = std::chrono::steady_clock::now() > limit;
    return waited_for->load();
  };
  {
    const Rank rank(0, 1, new_id(), {}, library);
    while (!rank.communicator->is_ready()) std::this_thread::yield();
  }
  EXPECT_FALSE(*waited_for);
  *left = true;
}

// A number of one element is there at once where the peers have sent theirs.
TEST(NcclThreads, ATurnIsAskedForOnlyWhileItWaits) {
  Stepped allreduce(Progress::Advanced, 2);
  LaunchTurn turn(std::make_shared<LaunchOrder>(), LaunchLine{1}, allreduce);
  EXPECT_TRUE(turn.may_enter());
}

// The members' agreement by MPI goes on only while all of them step it.
TEST(NcclThreads, ABatchIsDrivenWhileTheMembersAgree) {
  for (const Progress waits : {Progress::Driving, Progress::Polling}) {
    Stepped allreduce(waits, 3);
    const auto cuda = std::make_shared<test::HostCuda>();
    NcclCommunicator::Parts parts;
    parts.gpu = std::make_shared<JobGpu>(cuda, std::make_shared<test::HostNccl>(cuda));
    parts.id_exchange = std::make_unique<AllreduceNcclId>(allreduce, /*first=*/true);
    const auto line = std::make_shared<NcclLine>(
        std::make_shared<NcclCommunicator>(std::move(parts)),
        std::make_unique<LaunchTurn>(std::make_shared<LaunchOrder>(), LaunchLine{1}, allreduce));
    const auto op = std::move(make_nccl_ops(line).front());
    CudaMemory memory(cuda);
    float data = 1.0F;
    core::Batch batch;
    batch.device = DeviceKind::Cuda;
    batch.input = batch.output = reinterpret_cast<std::byte*>(&data);
    batch.count = 1;
    batch.queue = &memory.queue();
    const auto flight = op->start(batch);
    int driven = 0;
    for (Progress seen = Progress::Polling; seen != Progress::Done;) {
      seen = flight->step();
      driven += seen == Progress::Driving ? 1 : 0;
    }
    EXPECT_EQ(driven, waits == Progress::Driving ? 6 : 0);  // for the id, and for the turn
    memory.queue().record()->wait();
  }
}

// Half precision: the sum of four such numbers is beyond its range, their average is not.
TEST(NcclThreads, AnAverageOfFloat16DoesNotOverflow) {
  const NcclUniqueId id = new_id();
  core::run_ranks(4, [&](int index) {
    Rank rank(index, 4, id);
    std::vector<uint16_t> data(9, 0x7b00);  // 57344
    core::Batch batch;
    batch.dtype = DataType::Float16;
    batch.reduce_op = ReduceOp::Average;
    batch.divisor = 4;
    batch.input = reinterpret_cast<const std::byte*>(data.data());
    batch.output = reinterpret_cast<std::byte*>(data.data());
    batch.count = 9;
    batch.queue = &rank.memory.queue();
    Rank::enqueue(*rank.allreduce->start(batch));
    rank.memory.queue().record()->wait();
    EXPECT_EQ(data, std::vector<uint16_t>(9, 0x7b00));
  });
}

// As allreduce: each rank's part is made smaller before the sum.
TEST(NcclThreads, AReducescatterOfFloat16OverflowsNoMoreThanAnAllreduce) {
  const NcclUniqueId id = new_id();
  core::run_ranks(4, [&](int index) {
    const Rank rank(index, 4, id);
    auto ops = make_nccl_ops(std::make_shared<NcclLine>(rank.communicator));
    const std::vector<uint16_t> input(20, 0x7b00);  // 57344
    std::vector<uint16_t> output(5);
    core::Batch batch;
    batch.kind = CollectiveKind::Reducescatter;
    batch.device = DeviceKind::Cuda;
    batch.dtype = DataType::Float16;
    batch.reduce_op = ReduceOp::Average;
    batch.divisor = 4;
    batch.input = reinterpret_cast<const std::byte*>(input.data());
    batch.output = reinterpret_cast<std::byte*>(output.data());
    batch.count = 5;
    batch.send_counts = std::vector<int64_t>(4, 5);
    CudaMemory memory(rank.cuda);
    batch.queue = &memory.queue();
    Rank::enqueue(*ops[1]->start(batch));
    memory.queue().record()->wait();
    EXPECT_EQ(output, std::vector<uint16_t>(5, 0x7b00));
    EXPECT_EQ(input, std::vector<uint16_t>(20, 0x7b00));
  });
}

// As NCCL's; in Horon's own ops a NaN wins.
TEST(NcclThreads, InAMaximumANumberWinsOverANan) {
  const NcclUniqueId id = new_id();
  core::run_ranks(2, [&](int index) {
    Rank rank(index, 2, id);
    std::vector<float> data = {index == 0 ? std::nanf("") : 1.0F,
                               index == 0 ? 2.0F : std::nanf("")};
    core::Batch batch;
    batch.device = DeviceKind::Cuda;
    batch.reduce_op = ReduceOp::Max;
    batch.input = batch.output = reinterpret_cast<std::byte*>(data.data());
    batch.count = 2;
    batch.queue = &rank.memory.queue();
    Rank::enqueue(*rank.allreduce->start(batch));
    rank.memory.queue().record()->wait();
    EXPECT_EQ(data, (std::vector<float>{1.0F, 2.0F}));
  });
}

// NCCL's abort of one communicator may wait for the kernels of another, which wait for peers too.
TEST(NcclThreads, CommunicatorsAreAbortedAtTheSameTime) {
  std::atomic<int> aborting{0};
  test::HostNccl::Options library;
  library.end_may_return = [&aborting,
                            counted = std::make_shared<std::map<std::thread::id, bool>>(),
                            mutex = std::make_shared<std::mutex>()] {
    const std::lock_guard lock(*mutex);
    if (counted->emplace(std::this_thread::get_id(), true).second) ++aborting;
    return aborting == 3;
  };
  const std::vector<NcclUniqueId> ids = {new_id(), new_id(), new_id()};
  std::vector<std::unique_ptr<Rank>> ranks;
  for (const NcclUniqueId& id : ids) {
    ranks.push_back(std::make_unique<Rank>(0, 1, id, test::HostCuda::Options(), library));
    while (!ranks.back()->communicator->is_ready()) std::this_thread::yield();
  }
  for (const auto& rank : ranks) rank->allreduce->abort();
  const auto limit = std::chrono::steady_clock::now() + kLongEnough;
  for (const auto& rank : ranks) rank->allreduce->finish_abort(limit);
  EXPECT_EQ(aborting, 3);
}

// The error names the members.
TEST(NcclThreads, ACommunicatorThatIsNotMadeInTimeHasFailed) {
  NcclCommunicator::Parts parts;
  const auto cuda = std::make_shared<test::HostCuda>();
  parts.gpu = std::make_shared<JobGpu>(cuda, std::make_shared<test::HostNccl>(cuda));
  parts.size = 2;
  parts.id_exchange = std::make_unique<KnownNcclId>(new_id());
  parts.members = "ranks 3, 5";
  parts.limit = std::chrono::milliseconds(50);
  NcclCommunicator communicator(std::move(parts));
  std::string error;
  while (error.empty()) {
    try {
      EXPECT_FALSE(communicator.is_ready());  // the other member never comes
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } catch (const Error& timeout) {
      error = timeout.what();
    }
  }
  EXPECT_NE(error.find("NCCL has not connected ranks 3, 5"), std::string::npos) << error;
  communicator.abort();
  communicator.finish_abort(std::chrono::steady_clock::now() + std::chrono::seconds(5));
}

}  // namespace
}  // namespace horon::ops
