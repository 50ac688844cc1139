// Doubles for tests of the executor and the runtime: an op that reduces among ranks that are
// threads of this process, and a device whose copies, events and ops happen late, out of order, or
// not at all.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/memory_domain.h"

namespace horon::test {

// Where the ranks of one fake world meet. Float32 allreduce by Sum and Average, allgather,
// broadcast, barrier.
class FakeMeeting {
 public:
  explicit FakeMeeting(int size) : size_(size) {}

  // Leaves this rank's batch. The last rank to come computes all results.
  void post(int rank, core::Batch batch);
  bool complete(uint64_t sequence);
  // The order in which a rank started its batches.
  std::vector<uint64_t> started(int rank);

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

// How slow the fake device is; each figure is a number of polls.
struct FakeDelays {
  int op_polls = 0;
  int copy_polls = 0;
  int fail_op_at_sequence = -1;
};

class FakeOp final : public core::CollectiveOp {
 public:
  FakeOp(int rank, std::shared_ptr<FakeMeeting> meeting, FakeDelays delays, DeviceKind device)
      : rank_(rank), meeting_(std::move(meeting)), delays_(delays), device_(device) {}
  std::string_view name() const override { return "fake_allreduce"; }
  std::string refusal(const core::BatchFacts& facts) const override {
    return facts.device == device_ ? "" : "wrong device";
  }
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  const int rank_;
  const std::shared_ptr<FakeMeeting> meeting_;
  const FakeDelays delays_;
  const DeviceKind device_;
};

// Copies happen only when somebody has polled long enough; later copies may happen before earlier
// ones.
class FakeDomain final : public core::MemoryDomain {
 public:
  FakeDomain(DeviceKind device, FakeDelays delays) : device_(device), delays_(delays) {}
  DeviceKind device() const override { return device_; }
  std::shared_ptr<std::byte> allocate(size_t bytes) override;
  std::unique_ptr<core::PendingCopy> copy(std::span<const core::CopyItem> items) override;

 private:
  const DeviceKind device_;
  const FakeDelays delays_;
  int copies_ = 0;
};

// Ready after so many polls; throws at the last one if told so.
class FakeEvent final : public core::ReadyEvent {
 public:
  explicit FakeEvent(int polls, bool fails = false) : polls_(polls), fails_(fails) {}
  bool ready() override;

 private:
  int polls_;
  const bool fails_;
};

}  // namespace horon::test
