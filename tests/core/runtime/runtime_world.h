// Ranks that are threads of one process, each with a runtime and a fake op.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/base/log.h"
#include "horon/core/execution/block_layout.h"
#include "horon/core/execution/executor.h"
#include "horon/core/negotiation/ring_gate.h"
#include "horon/core/runtime/runtime.h"
#include "horon/core/transport/in_process_transport.h"
#include "horon/tests/support/fake_device.h"
#include "horon/tests/support/long_enough.h"

namespace horon::core::test_world {

using test::FakeDelays;
using test::FakeDevice;
using test::FakeDomain;
using test::FakeMeeting;
using test::FakeMemory;
using test::FakeOp;

// A submission owns a share of the tensor's memory, and so keeps it where a peer may still read it.
struct Tensor {
  Tensor() = default;
  Tensor(const Tensor& other)
      : memory(std::make_shared<std::vector<float>>(other.data)), spec(other.spec) {}
  Tensor& operator=(const Tensor& other) {
    data = other.data;
    spec = other.spec;
    return *this;
  }
  ~Tensor() = default;

  std::shared_ptr<std::vector<float>> memory = std::make_shared<std::vector<float>>();
  std::vector<float>& data = *memory;
  std::shared_ptr<EntrySpec> spec = std::make_shared<EntrySpec>();
};

inline Tensor tensor(std::vector<float> data, CollectiveKind kind = CollectiveKind::Allreduce) {
  Tensor out;
  out.spec->kind = kind;
  out.spec->parts = {{"x", {static_cast<int64_t>(data.size())}}};
  out.data = std::move(data);
  return out;
}

inline Submission submission(const std::string& name, Tensor& tensor) {
  Submission out;
  out.name = name;
  out.spec = tensor.spec;
  auto* data = reinterpret_cast<std::byte*>(tensor.data.data());
  out.memory = {{data, data, static_cast<int64_t>(tensor.data.size())}};
  out.keep_alive = tensor.memory;
  return out;
}

inline Submission in_set(uint32_t set, const std::string& name, Tensor& tensor) {
  Submission out = submission(name, tensor);
  out.set = set;
  return out;
}

// No rank is declared dead because it is silent: only what a rank says itself, or what the platform
// knows, can end the others. A slow rank is not reported either, so a test on a busy machine thaws
// only what it means to.
inline Config no_limits() {
  Config config;
  config.dead_after_s = 0;
  config.stall_warn_s = 0;
  return config;
}

// An event that happens when the test says so. No queue can wait for it.
class PolledEvent final : public Event {
 public:
  explicit PolledEvent(std::function<bool()> happened) : happened_(std::move(happened)) {}
  bool happened() override { return happened_(); }
  void wait() override {
    while (!happened_()) std::this_thread::yield();
  }

 private:
  const std::function<bool()> happened_;
};

// What a test changes in the parts of each rank.
struct Hooks {
  std::function<std::unique_ptr<Transport>(int rank, std::unique_ptr<Transport>)> wrap_transport;
  std::function<void(int rank)> before_set;  // called in the loop, before a process set is made
  // May replace the ops and the memory of a set, which are fakes otherwise.
  std::function<void(int rank, const std::vector<int>& ranks, Executor::Parts&)> change_execution;
  // May put another gate in front of that of a set.
  std::function<std::unique_ptr<Gate>(const std::vector<int>& ranks, std::unique_ptr<Gate>)>
      wrap_gate;
  std::vector<int> host_of;                   // by rank, see Topology; empty: all are on one host
  std::shared_ptr<SeatVisitor> seat_visitor;  // of all ranks
};

class World {
 public:
  // `memory`: the kind of memory of all tensors, whatever their specs say.
  explicit World(int size, FakeDelays delays = {}, Config config = no_limits(),
                 const Hooks& hooks = {}, bool step_in_submit = false,
                 FakeMemory memory = test::memory_of_worlds()) {
    set_log(0, LogLevel::Error);
    const auto meetings = std::make_shared<Meetings>();
    const auto meetings_of_pairs = std::make_shared<Meetings>();
    auto transports = InProcessTransport::make_world(size);
    std::vector<Doorbell*> doorbells;  // live as long as any rank's transport
    for (const auto& transport : transports) doorbells.push_back(&transport->doorbell());
    for (int rank = 0; rank < size; ++rank) {
      Runtime::Parts parts;
      parts.config = config;
      parts.step_in_submit = step_in_submit;
      parts.seat_visitor = hooks.seat_visitor;
      std::vector<int> host_of = hooks.host_of;
      host_of.resize(static_cast<size_t>(size));
      parts.topology = make_topology(rank, host_of);
      parts.transport = std::move(transports[static_cast<size_t>(rank)]);
      if (hooks.wrap_transport) {
        parts.transport = hooks.wrap_transport(rank, std::move(parts.transport));
      }
      std::vector<int> all(static_cast<size_t>(size));
      std::iota(all.begin(), all.end(), 0);
      FakeDevice::Options options;
      options.delay_max = delays.copy_polls;
      options.seed = static_cast<uint32_t>(rank) + 1;
      options.index = delays.device_index;
      options.by_hand = memory == FakeMemory::Immediate;  // it needs no thread
      devices_.push_back(std::make_shared<FakeDevice>(options));
      const auto make = [=, device = devices_.back(), change = hooks.change_execution,
                         wrap_gate = hooks.wrap_gate](const std::vector<int>& ranks,
                                                      Meetings& where) {
        SetResources made = resources({rank, memory, device, change, host_of}, ranks,
                                      where.next(rank, ranks), delays, doorbells);
        if (wrap_gate) made.gate = wrap_gate(ranks, std::move(made.gate));
        return made;
      };
      parts.world = make(all, *meetings);
      parts.make_set = [=, before_set = hooks.before_set](const std::vector<int>& ranks) {
        if (before_set) before_set(rank);
        return make(ranks, *meetings);
      };
      parts.make_pair = [=](const std::vector<int>& ranks) {
        return make(ranks, *meetings_of_pairs);
      };
      ranks_.push_back(std::make_unique<Runtime>(std::move(parts)));
    }
  }
  ~World() {
    each([](Runtime& runtime, int) { EXPECT_EQ(runtime.shutdown(kLongEnough), ""); });
  }

  // Runs the program of every rank on a thread of its own.
  void each(const std::function<void(Runtime&, int)>& program) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      threads.emplace_back([&, rank] { program(*ranks_[rank], static_cast<int>(rank)); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  FakeDevice& device(int rank) { return *devices_[static_cast<size_t>(rank)]; }

 private:
  // What the ranks of a set share.
  struct Meeting {
    explicit Meeting(int size) : ops(size), gates(static_cast<size_t>(size)) {
      for (auto& gate : gates) gate.resize(RingGate::bytes(size) / sizeof(Line));
    }
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    FakeMeeting ops;
    std::vector<std::vector<Line>> gates;  // by the first member of a host
  };

  // The n-th set of the same ranks is the same set for all of them.
  class Meetings {
   public:
    std::shared_ptr<Meeting> next(int rank, const std::vector<int>& ranks) {
      const std::lock_guard lock(mutex_);
      const int number = made_[{rank, ranks}]++;
      auto& meeting = meetings_[{number, ranks}];
      if (!meeting) meeting = std::make_shared<Meeting>(static_cast<int>(ranks.size()));
      return meeting;
    }

   private:
    std::mutex mutex_;
    std::map<std::pair<int, std::vector<int>>, int> made_;
    std::map<std::pair<int, std::vector<int>>, std::shared_ptr<Meeting>> meetings_;
  };

  struct Place {
    int rank = 0;
    FakeMemory memory = FakeMemory::Immediate;
    std::shared_ptr<FakeDevice> device;
    decltype(Hooks::change_execution) change_execution;
    std::vector<int> host_of;
  };

  static SetResources resources(const Place& place, const std::vector<int>& ranks,
                                const std::shared_ptr<Meeting>& shared, FakeDelays delays,
                                const std::vector<Doorbell*>& doorbells) {
    const int rank = place.rank;
    const std::shared_ptr<FakeMeeting> meeting(shared, &shared->ops);
    Executor::Parts execution;
    execution.rank = index_of(rank, ranks);
    execution.size = static_cast<int>(ranks.size());
    execution.ranks = ranks;
    std::vector<std::unique_ptr<CollectiveOp>> ops;
    ops.push_back(
        std::make_unique<FakeOp>(execution.rank, meeting, delays, DeviceKind::Host, place.memory));
    execution.ops = std::make_shared<OpTable>(std::move(ops), "auto");
    execution.scratch =
        test::scratch_of(place.memory == FakeMemory::Immediate
                             ? std::make_unique<FakeDomain>(DeviceKind::Host)
                             : std::make_unique<FakeDomain>(DeviceKind::Host, place.device));
    if (place.change_execution) place.change_execution(rank, ranks, execution);
    auto gate = gate_of(place, ranks, *shared, doorbells);
    return {shared, std::make_unique<Executor>(std::move(execution)), std::move(gate)};
  }

  // The gate that this rank shares with the members on the same host.
  static std::unique_ptr<RingGate> gate_of(const Place& place, const std::vector<int>& ranks,
                                           Meeting& shared,
                                           const std::vector<Doorbell*>& doorbells) {
    const int host = place.host_of[static_cast<size_t>(place.rank)];
    std::vector<int> local;
    for (const int other : ranks) {
      if (place.host_of[static_cast<size_t>(other)] == host) local.push_back(other);
    }
    const auto wake = [=, rank = place.rank] {
      for (const int other : local) {
        if (other != rank) doorbells[static_cast<size_t>(other)]->ring();
      }
    };
    const auto wake_first = [=] { doorbells[static_cast<size_t>(local.front())]->ring(); };
    auto* const area = reinterpret_cast<std::byte*>(
        shared.gates[static_cast<size_t>(index_of(local.front(), ranks))].data());
    return std::make_unique<RingGate>(area, index_of(place.rank, local),
                                      static_cast<int>(local.size()), wake, wake_first);
  }

  std::vector<std::shared_ptr<FakeDevice>> devices_;
  std::vector<std::unique_ptr<Runtime>> ranks_;
};

// The error of the collective, or an empty text. Waits until the result is in memory.
inline std::string error_of(const HandleState& handle) {
  try {
    (void)handle.get();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

inline void wait_for_report(const Runtime& runtime, const std::string& text) {
  while (runtime.stall_report().find(text) == std::string::npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace horon::core::test_world
