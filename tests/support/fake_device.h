// Doubles for tests of the executor and the runtime: a device that works asynchronously to the
// host, late, in any order that its queues allow, or fails; and ops among ranks that are threads of
// this process.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/memory_domain.h"
#include "horon/core/execution/scratch_pool.h"

namespace horon::test {

// A device whose work is done by a thread of its own, or by hand.
class FakeDevice {
 public:
  struct Options {
    int delay_max = 0;         // turns that each piece of work takes, at random
    uint32_t seed = 1;         // for the delays, and for which queue goes on
    int fails_at = -1;         // the n-th piece of work fails, and the device for good
    bool loses_waits = false;  // a planted fault: its queues do not wait for events
    bool by_hand = false;      // only turn() does work
    int index = 0;             // the device's index
  };
  explicit FakeDevice(Options options);
  ~FakeDevice();
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  // Lets one queue, chosen at random among those with work, do a little of it. False: none could.
  bool turn();
  // How often a thread has waited in Event::wait().
  int host_waits() const;
  int index() const;

  struct Work {
    std::function<bool()> may_run;  // null: at once
    std::function<void()> run;      // null: nothing
  };
  struct State;

 private:
  friend class FakeQueue;
  const std::shared_ptr<State> state_;
};

// Does its work in order. It may outlive its device, and then does nothing any more.
class FakeQueue final : public core::MemoryQueue {
 public:
  explicit FakeQueue(const FakeDevice& device);
  bool immediate() const override { return false; }
  // False for every event that is not of a fake queue.
  bool wait_for(core::Event& event) override;
  void copy(std::span<const core::CopyItem> items) override;
  std::shared_ptr<core::Event> record() override;
  // As record(), with one owner: the event by which the program says that its tensors are ready.
  std::unique_ptr<core::Event> record_ready();

  void enqueue(FakeDevice::Work work);
  // A kernel of the program.
  void run(std::function<void()> kernel) { enqueue({nullptr, std::move(kernel)}); }

 private:
  const std::shared_ptr<FakeDevice::State> device_;
  const size_t index_;
};

// How the memory of a domain behaves, and who runs the collectives on it.
enum class FakeMemory : uint8_t {
  Immediate,   // as host memory: copies at once, the op is stepped by the host
  HostDriven,  // copies are enqueued, the op is stepped by the host
  Enqueued,    // copies and op are enqueued
};

// The kind of memory of the worlds in a test program. The program chooses it by the file
// support/memory_of_worlds_*.cc that it links.
FakeMemory memory_of_worlds();

// Where the ranks of one fake world meet. Does allreduce of float32 and of types of 16 bits by Sum
// and Average; allgather, broadcast and barrier of float32.
class FakeMeeting {
 public:
  explicit FakeMeeting(int size) : size_(size) {}

  // Hands over this rank's batch. The last rank to do so computes all results.
  void post(int rank, core::Batch batch);
  bool complete(uint64_t sequence);
  // The sequence numbers of a rank's batches, in the order of post().
  std::vector<uint64_t> started(int rank);
  // Batch::tensor_counts of rank 0.
  std::vector<int64_t> tensor_counts(uint64_t sequence);

 private:
  struct Group {
    std::map<int, core::Batch> batches;
    bool done = false;
  };
  static void compute(Group& group);

  const int size_;
  std::mutex mutex_;
  std::map<uint64_t, Group> groups_;
  std::map<int, std::vector<uint64_t>> started_;
};

// How slow the fake device is; a figure is a number of polls or of turns.
struct FakeDelays {
  int op_polls = 0;
  int only_polls_at_sequence = -1;  // other batches need no polls
  int copy_polls = 0;               // the device takes up to as many turns for each piece of work
  int fail_op_at_sequence = -1;     // where the op is enqueued, after that
  core::StartOrder order = core::StartOrder::Log;
  int device_index = 0;                                // of every rank's device
  std::function<void(int member)> on_abort = nullptr;  // in CollectiveOp::abort()
};

class FakeOp final : public core::CollectiveOp {
 public:
  FakeOp(int rank, std::shared_ptr<FakeMeeting> meeting, FakeDelays delays, DeviceKind device,
         FakeMemory memory = FakeMemory::Immediate)
      : rank_(rank),
        meeting_(std::move(meeting)),
        delays_(delays),
        device_(device),
        enqueues_(memory == FakeMemory::Enqueued) {}
  std::string_view name() const override { return "fake_allreduce"; }
  std::string refusal(const core::BatchFacts& facts) const override {
    return facts.device == device_ ? "" : "wrong device";
  }
  bool enqueues() const override { return enqueues_; }
  core::StartOrder start_order() const override { return delays_.order; }
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;
  void abort() noexcept override {
    if (delays_.on_abort) delays_.on_abort(rank_);
    *aborted_ = true;
  }

 private:
  const int rank_;
  const std::shared_ptr<FakeMeeting> meeting_;
  const FakeDelays delays_;
  const DeviceKind device_;
  const bool enqueues_;
  const std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
};

// Scratch is full of NaN at first, so that a reduction of memory that is not packed yet shows.
class FakeDomain final : public core::MemoryDomain {
 public:
  // A domain on the host: it copies at once.
  explicit FakeDomain(DeviceKind device);
  // A domain with a queue of its own on the device, which it keeps alive.
  FakeDomain(DeviceKind device, std::shared_ptr<FakeDevice> on);
  DeviceKind device() const override { return device_; }
  int device_index() const override { return on_ == nullptr ? 0 : on_->index(); }
  bool is_open() override {
    if (opens_in_ > 0) --opens_in_;
    return opens_in_ == 0;
  }
  // is_open() returns false `questions` - 1 times, and then true.
  void open_in(int questions) { opens_in_ = questions; }
  std::shared_ptr<std::byte> allocate(size_t bytes) override;
  core::MemoryQueue& queue() override { return *queue_; }
  // The number of pieces of scratch that were asked for.
  int allocations() const { return allocations_; }
  // The bytes of scratch that have not been released.
  size_t bytes_held() const { return *bytes_held_; }

 private:
  const DeviceKind device_;
  const std::shared_ptr<FakeDevice> on_;
  const std::unique_ptr<core::MemoryQueue> queue_;
  int allocations_ = 0;
  int opens_in_ = 0;
  const std::shared_ptr<std::atomic<size_t>> bytes_held_ = std::make_shared<std::atomic<size_t>>(0);
};

// A pool with this domain only.
std::shared_ptr<core::ScratchPool> scratch_of(std::unique_ptr<core::MemoryDomain> domain,
                                              size_t bytes_max = core::ScratchPool::kNoLimit);

// An event that no queue can wait for. It happens after `polls` polls; with `fails` it throws
// instead.
class FakeEvent final : public core::Event {
 public:
  explicit FakeEvent(int polls, bool fails = false) : polls_(polls), fails_(fails) {}
  bool happened() override;
  void wait() override;

 private:
  int polls_;
  const bool fails_;
};

}  // namespace horon::test
