// Sets that are idle while another one is busy: they cost it nothing, and still hear of everything.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "horon/core/base/text.h"
#include "horon/core/runtime/look_round.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/tests/core/runtime/known_death.h"
#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using namespace test_world;
using testing::HasSubstr;

constexpr int kRanks = 3;
constexpr uint32_t kSets = 100;

// The error of the call, or the one with which it is refused since the job has ended.
std::string error_of_run(Runtime& runtime, Submission&& given) {
  try {
    return error_of(*runtime.run(std::move(given)));
  } catch (const Error& refused) {
    return refused.what();
  }
}

std::string sum(Runtime& runtime, const std::string& name, uint32_t set = 0) {
  Tensor x = tensor({1, 2});
  return error_of_run(runtime, in_set(set, name, x));
}

// Runs collectives of all ranks until every rank has seen what it waits for.
void stay_busy(Runtime& runtime, const std::function<bool()>& seen) {
  bool seen_here = false;
  for (bool over = false; !over;) {
    seen_here = seen_here || seen();
    Tensor all = tensor({seen_here ? 1.0F : 0.0F, 0.0F});
    ASSERT_EQ(error_of(*runtime.run(submission("busy", all))), "");
    over = all.data[0] >= kRanks;
  }
}

// Counts how often the loop looks at the rings of sets of two ranks.
class CountedGate final : public Gate {
 public:
  CountedGate(std::unique_ptr<Gate> below, std::atomic<uint64_t>& looks)
      : below_(std::move(below)), looks_(looks) {}

  bool fill(Place place) override { return below_->fill(place); }
  void append_go(Place place, bool more) override { below_->append_go(place, more); }
  void append_marker(uint64_t position) override { below_->append_marker(position); }
  void append_filled(Place place) override { below_->append_filled(place); }
  void wake() override { below_->wake(); }
  bool room() const override { return below_->room(); }
  std::optional<RingItem> next(uint64_t applied) override {
    ++looks_;
    return below_->next(applied);
  }

 private:
  const std::unique_ptr<Gate> below_;
  std::atomic<uint64_t>& looks_;
};

// `waits`: in each of the other sets rank 0 waits for rank 1.
void expect_no_looks_at_other_sets(bool waits) {
  std::atomic<uint64_t> looks{0};
  Hooks hooks;
  hooks.wrap_gate = [&](const std::vector<int>& ranks, std::unique_ptr<Gate> gate) {
    if (ranks.size() != 2) return gate;
    return std::unique_ptr<Gate>(new CountedGate(std::move(gate), looks));
  };
  World world(kRanks, {}, no_limits(), hooks);
  std::barrier all(kRanks);
  world.each([&](Runtime& runtime, int rank) {
    for (uint32_t set = 1; set <= kSets; ++set) runtime.add_set(set, {0, 1});
    all.arrive_and_wait();
    for (uint32_t set = 1; rank < 2 && set <= kSets; ++set) {
      for (int i = 0; i < 5; ++i) ASSERT_EQ(sum(runtime, "x", set), "");
    }
    std::vector<Tensor> tensors(waits && rank < 2 ? kSets : 0, tensor({1, 2}));
    std::vector<std::shared_ptr<HandleState>> handles;
    const auto submit_everywhere = [&] {
      for (Tensor& x : tensors) {
        const auto set = static_cast<uint32_t>(handles.size()) + 1;
        handles.push_back(runtime.submit(in_set(set, "late", x)));
      }
    };
    if (rank == 0) submit_everywhere();
    ASSERT_EQ(sum(runtime, "busy"), "");
    all.arrive_and_wait();
    const auto begin = std::chrono::steady_clock::now();
    const uint64_t before = looks;
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(sum(runtime, "busy"), "");
    const uint64_t looked = looks - before;  // first: what follows takes time
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - begin;
    // Each member of each set, in a few rounds by the clock, a few looks each.
    const auto rounds = static_cast<uint64_t>(took.count() / LookRound::kLength) + 2;
    EXPECT_LE(looked, 2 * kSets * rounds * 3);
    all.arrive_and_wait();
    if (rank == 1) submit_everywhere();
    for (const auto& handle : handles) EXPECT_EQ(error_of(*handle), "");
    for (uint32_t set = 1; set <= kSets; ++set) runtime.remove_set(set);
    ASSERT_EQ(sum(runtime, "busy"), "");
  });
}

TEST(IdleSets, CostTheCollectivesOfAnotherSetNothing) { expect_no_looks_at_other_sets(false); }

TEST(IdleSets, CostNothingWhileTheyWaitForARank) { expect_no_looks_at_other_sets(true); }

// A rank refuses what is frozen in a set; the others say nothing there.
TEST(IdleSets, HearOfAThaw) {
  for (const std::vector<int>& host_of : {std::vector<int>{0, 0, 0}, {0, 0, 1}, {0, 1, 1}}) {
    Hooks hooks;
    hooks.host_of = host_of;
    World world(kRanks, {}, no_limits(), hooks);
    std::barrier all(kRanks);
    world.each([&](Runtime& runtime, int rank) {
      runtime.add_set(1, {0, 1, 2});
      all.arrive_and_wait();
      for (int i = 0; i < 10; ++i) ASSERT_EQ(sum(runtime, "x", 1), "");
      EXPECT_EQ(runtime.statistics().freezes, 1U);
      all.arrive_and_wait();
      if (rank == 1) runtime.refuse("x", "no good", 1);
      stay_busy(runtime, [&] { return runtime.statistics().thaws == 1; });
      if (rank != 1) {
        EXPECT_THAT(sum(runtime, "x", 1), HasSubstr("refused on rank 1"));
      }
      for (int i = 0; i < 10; ++i) ASSERT_EQ(sum(runtime, "x", 1), "");
    });
  }
}

TEST(IdleSets, ReportWhoIsMissing) {
  for (const int missing : {0, 2}) {
    Config config = no_limits();
    config.stall_warn_s = 0.3;
    World world(kRanks, {}, config);
    std::barrier all(kRanks);
    world.each([&](Runtime& runtime, int rank) {
      runtime.add_set(1, {0, 1, 2});
      all.arrive_and_wait();
      Tensor x = tensor({1, 2});
      std::shared_ptr<HandleState> handle;
      if (rank != missing) handle = runtime.submit(in_set(1, "x", x));
      const std::string text = "\"x\": waiting for rank " + std::to_string(missing);
      stay_busy(runtime, [&] { return runtime.stall_report().find(text) != std::string::npos; });
      if (handle == nullptr) handle = runtime.submit(in_set(1, "x", x));
      EXPECT_EQ(error_of(*handle), "");
      stay_busy(runtime, [&] { return runtime.stall_report().empty(); });
    });
  }
}

// Only the clock makes the coordinator report that.
TEST(IdleSets, ReportWhoHasNotJoined) {
  Config config = no_limits();
  config.stall_warn_s = 0.3;
  World world(kRanks, {}, config);
  std::barrier all(kRanks);
  world.each([&](Runtime& runtime, int rank) {
    runtime.add_set(1, {0, 1, 2});
    all.arrive_and_wait();
    std::shared_ptr<HandleState> joined;
    if (rank == 1) joined = runtime.join(1);
    stay_busy(runtime, [&] {
      return runtime.stall_report().find("not yet: ranks 0 and 2") != std::string::npos;
    });
    if (joined == nullptr) joined = runtime.join(1);
    EXPECT_EQ(error_of(*joined), "");
    EXPECT_EQ(sum(runtime, "x", 1), "");
  });
}

// Two ranks are busy with each other, and wait for a third rank in another set. Returns the error
// that they get.
std::string error_of_busy_ranks(const Config& config, const Hooks& hooks,
                                const std::function<void()>& strike) {
  std::string told[2];
  World world(kRanks, {}, config, hooks);
  std::barrier all(kRanks);
  world.each([&](Runtime& runtime, int rank) {
    runtime.add_set(1, {0, 1, 2});
    runtime.add_set(2, {0, 1});
    all.arrive_and_wait();  // all have the sets
    std::string error = sum(runtime, "x", 1);
    all.arrive_and_wait();
    if (rank == 2) {
      strike();
      all.arrive_and_wait();
      return;
    }
    Tensor x = tensor({1, 2});
    std::shared_ptr<HandleState> handle;
    if (rank == 1) handle = runtime.submit(in_set(1, "x", x));  // rank 0 says nothing there
    while (error.empty()) error = sum(runtime, "busy", 2);
    if (handle != nullptr) {
      EXPECT_EQ(error_of(*handle), error);
    }
    told[rank] = error;
    all.arrive_and_wait();
  });
  // Each may come to an end by itself.
  return told[0] == told[1] ? told[0] : told[0] + "; " + told[1];
}

// Receives nothing for some time, as a process that stands still.
class Deaf final : public ForwardingTransport {
 public:
  Deaf(std::unique_ptr<Transport> below, const std::atomic<bool>& deaf)
      : ForwardingTransport(std::move(below)), deaf_(deaf) {}
  std::optional<Message> receive() override {
    return deaf_ ? std::nullopt : ForwardingTransport::receive();
  }

 private:
  const std::atomic<bool>& deaf_;
};

// Tries again if `error` says that one of the ranks in `alive` is silent: on a busy machine a rank
// may be silent for a second. A longer limit would not do, because a process that stands still for
// long blames no rank.
std::string unless_busy(const std::vector<int>& alive, const std::function<std::string()>& error) {
  constexpr int kTimes = 15;
  for (int times = 1;; ++times) {
    const std::string text = error();
    const bool is_busy = std::any_of(alive.begin(), alive.end(), [&](int rank) {
      return text.find(concat("rank ", rank, " has not answered")) != std::string::npos;
    });
    if (!is_busy || times == kTimes) return text;
  }
}

// Rank 1 asks rank 0, whose set is idle and which asks rank 2.
TEST(IdleSets, FindOutWhoDoesNotAnswer) {
  std::atomic<bool> deaf{false};
  Hooks hooks;
  hooks.wrap_transport = [&](int rank, std::unique_ptr<Transport> below) {
    if (rank != 2) return below;
    return std::unique_ptr<Transport>(new Deaf(std::move(below), deaf));
  };
  Config config = no_limits();
  config.dead_after_s = 1;
  const std::string error = unless_busy({0, 1}, [&] {
    deaf = false;
    return error_of_busy_ranks(config, hooks, [&] { deaf = true; });
  });
  EXPECT_THAT(error, HasSubstr("rank 2 has not answered"));
}

TEST(IdleSets, HearOfADeath) {
  Dead dead;
  dead.rank = 2;
  const auto dies = [&] { dead.known = true; };
  EXPECT_THAT(error_of_busy_ranks(no_limits(), hooks_of(dead), dies),
              HasSubstr("rank 2 (pid 4711) has died"));
}

// To make the resources of a pair may take longer than the limit for an answer.
TEST(IdleSets, AQuestionIsDatedWhenItGoes) {
  std::atomic<bool> slept{false};
  Hooks hooks;
  hooks.change_execution = [&](int rank, const std::vector<int>& ranks, Executor::Parts&) {
    if (ranks.size() != 2) return;
    if (rank == 1) std::this_thread::sleep_for(20ms);
    if (rank == 0 && !slept.exchange(true)) std::this_thread::sleep_for(1400ms);
  };
  Config config = no_limits();
  config.dead_after_s = 1;
  const auto error_of_a_message = [&] {
    slept = false;
    std::string error;  // of the one that ends the job, if one does
    std::mutex mutex;
    World world(kRanks, {}, config, hooks);
    world.each([&](Runtime& runtime, int rank) {
      if (rank == 2) return;
      Tensor x = tensor({1, 2});
      x.spec->kind = CollectiveKind::Broadcast;
      x.spec->root = 0;
      if (rank == 1) std::this_thread::sleep_for(2500ms);
      const std::string mine = error_of_run(runtime, in_set(pair_set(0, 1, kRanks), "message", x));
      const std::lock_guard lock(mutex);
      error += mine;
    });
    return error;
  };
  EXPECT_EQ(unless_busy({0, 1, 2}, error_of_a_message), "");
}

}  // namespace
}  // namespace horon::core
