// One rank's executor, stepped by hand, on memory of each kind; its device delays, reorders and
// fails work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/execution/executor.h"
#include "horon/tests/support/fake_device.h"

namespace horon::core::executor_world {

using test::FakeDelays;
using test::FakeDevice;
using test::FakeDomain;
using test::FakeMeeting;
using test::FakeMemory;
using test::FakeOp;
using test::FakeQueue;

// One rank of a world of one or two.
struct Rank {
  Rank(FakeMemory memory, int rank, int size, std::shared_ptr<FakeMeeting> meeting,
       FakeDelays delays, size_t scratch_bytes_max = ScratchPool::kNoLimit) {
    FakeDevice::Options options;
    options.delay_max = delays.copy_polls;
    options.seed = static_cast<uint32_t>(rank) + 1;
    options.by_hand = true;
    start(memory, rank, size, std::move(meeting), delays, scratch_bytes_max, options);
  }
  Rank(FakeMemory memory, int rank, int size, std::shared_ptr<FakeMeeting> meeting,
       FakeDelays delays, FakeDevice::Options options,
       size_t scratch_bytes_max = ScratchPool::kNoLimit) {
    start(memory, rank, size, std::move(meeting), delays, scratch_bytes_max, options);
  }

  // The device takes up to three turns, then the executor steps, then the device again.
  Executor::Pace step() {
    turn_device();
    const Executor::Pace pace = step_executor();
    turn_device();
    return pace;
  }
  Executor::Pace step_executor() {
    const Executor::Pace pace = executor->step(finished, enqueued);
    EXPECT_NE(pace, Executor::Pace::Ringing) << "nothing here rings";
    return pace;
  }
  void turn_device() {
    for (int i = 0; i < 3; ++i) (void)device->turn();
  }

  // Steps until idle; the number of steps is bounded so that a lost batch fails the test.
  void run() {
    for (int i = 0; i < 1000; ++i) {
      if (step() == Executor::Pace::Idle) return;
    }
    FAIL() << "the executor does not come to rest";
  }

  std::shared_ptr<FakeDevice> device;
  FakeDomain* domain = nullptr;
  std::unique_ptr<Executor> executor;
  std::vector<FinishedBatch> finished;
  std::vector<EnqueuedBatch> enqueued;

 private:
  void start(FakeMemory memory, int rank, int size, std::shared_ptr<FakeMeeting> meeting,
             FakeDelays delays, size_t scratch_bytes_max, FakeDevice::Options options) {
    device = std::make_shared<FakeDevice>(options);
    std::vector<std::unique_ptr<CollectiveOp>> ops;
    ops.push_back(
        std::make_unique<FakeOp>(rank, std::move(meeting), delays, DeviceKind::Cuda, memory));
    Executor::Parts parts;
    parts.rank = rank;
    parts.size = size;
    parts.ops = std::make_shared<OpTable>(std::move(ops), "auto");
    auto mine = memory == FakeMemory::Immediate
                    ? std::make_unique<FakeDomain>(DeviceKind::Cuda)
                    : std::make_unique<FakeDomain>(DeviceKind::Cuda, device);
    domain = mine.get();
    parts.scratch = test::scratch_of(std::move(mine), scratch_bytes_max);
    executor = std::make_unique<Executor>(std::move(parts));
  }
};

// Steps two ranks until both are idle.
inline void run_both(Rank& zero, Rank& one) {
  for (int i = 0; i < 1000; ++i) {
    const bool idle = zero.step() == Executor::Pace::Idle;
    if (one.step() == Executor::Pace::Idle && idle) return;
  }
  FAIL() << "the executors do not come to rest";
}

inline EntryWork entry(uint64_t ticket, std::vector<float>& data,
                       std::vector<MemoryPart> memory = {}) {
  auto spec = std::make_shared<EntrySpec>();
  spec->device = DeviceKind::Cuda;
  spec->parts = {{"t", {static_cast<int64_t>(data.size())}}};
  EntryWork work;
  work.ticket = ticket;
  work.name = "t" + std::to_string(ticket);
  work.spec = spec;
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  work.memory = std::move(memory);
  if (work.memory.empty()) {
    work.memory = {{bytes, bytes, static_cast<int64_t>(data.size())}};
  }
  return work;
}

inline BatchWork batch(uint64_t sequence, std::vector<EntryWork> entries) {
  BatchWork work;
  work.sequence = sequence;
  work.entries = std::move(entries);
  return work;
}

template <class... Entries>
std::vector<EntryWork> list(Entries... entries) {
  std::vector<EntryWork> out;
  (out.push_back(std::move(entries)), ...);
  return out;
}

// The error of a batch of one entry in an executor whose only op is `op`.
inline std::optional<Error> error_of_one_batch(std::unique_ptr<CollectiveOp> op) {
  std::vector<std::unique_ptr<CollectiveOp>> ops;
  ops.push_back(std::move(op));
  Executor::Parts parts;
  parts.ops = std::make_shared<OpTable>(std::move(ops), "auto");
  parts.scratch = test::scratch_of(std::make_unique<FakeDomain>(DeviceKind::Cuda));
  Executor executor(std::move(parts));
  std::vector<float> data = {1};
  executor.enqueue(batch(0, list(entry(1, data))));
  std::vector<FinishedBatch> finished;
  std::vector<EnqueuedBatch> enqueued;
  for (int i = 0; i < 1000 && finished.empty(); ++i) executor.step(finished, enqueued);
  return finished.empty() ? std::nullopt : finished.front().error;
}

// For tests that must pass on memory of every kind.
class ExecutorContract : public testing::TestWithParam<FakeMemory> {};

inline std::string memory_name(const testing::TestParamInfo<FakeMemory>& info) {
  switch (info.param) {
    case FakeMemory::Immediate:
      return "Immediate";
    case FakeMemory::HostDriven:
      return "HostDriven";
    case FakeMemory::Enqueued:
      break;
  }
  return "Enqueued";
}

inline const auto every_memory =
    testing::Values(FakeMemory::Immediate, FakeMemory::HostDriven, FakeMemory::Enqueued);

}  // namespace horon::core::executor_world
