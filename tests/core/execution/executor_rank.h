// One rank's executor with a device that delays, reorders and fails, stepped by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/execution/executor.h"
#include "horon/tests/support/fake_device.h"

namespace horon::core::executor_world {

using test::FakeDelays;
using test::FakeDomain;
using test::FakeMeeting;
using test::FakeOp;

// One rank of a world of one or two, stepped by hand.
struct Rank {
  Rank(int rank, int size, std::shared_ptr<FakeMeeting> meeting, FakeDelays delays,
       DeviceKind device = DeviceKind::Cuda) {
    std::vector<std::unique_ptr<CollectiveOp>> ops;
    ops.push_back(std::make_unique<FakeOp>(rank, std::move(meeting), delays, device));
    Executor::Parts parts;
    parts.rank = rank;
    parts.size = size;
    parts.ops = std::make_shared<OpTable>(std::move(ops), "auto");
    parts.domains.push_back(std::make_unique<FakeDomain>(device, delays));
    executor = std::make_unique<Executor>(std::move(parts));
  }

  // Steps until idle; the number of steps is bounded so that a lost batch fails the test.
  void run() {
    for (int i = 0; i < 1000; ++i) {
      if (executor->step(finished) == Executor::Pace::Idle) return;
    }
    FAIL() << "the executor does not come to rest";
  }

  std::unique_ptr<Executor> executor;
  std::vector<FinishedBatch> finished;
};

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

}  // namespace horon::core::executor_world
