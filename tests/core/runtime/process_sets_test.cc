// Several process sets at once on runtimes that are threads: random programs against a sequential
// model, and what errors in one set mean for the others.
#include <algorithm>
#include <atomic>
#include <latch>
#include <optional>
#include <random>
#include <utility>

#include <gmock/gmock.h>

#include "horon/core/negotiation/wire_format.h"
#include "horon/tests/core/runtime/forwarding_transport.h"
#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using namespace test_world;
using testing::ElementsAre;
using testing::HasSubstr;

// What sessions do before and after it, so that no rank uses the set before all members have it.
void barrier(Runtime& runtime, const std::string& name) {
  Tensor nothing;
  nothing.spec->kind = CollectiveKind::Barrier;
  ASSERT_EQ(error_of(*runtime.submit(submission(name, nothing))), "");
}

void add(Runtime& runtime, uint32_t id, const std::vector<int>& ranks) {
  barrier(runtime, "add " + std::to_string(id));
  runtime.add_set(id, ranks);
  barrier(runtime, "added " + std::to_string(id));
}

bool has(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// A step of all ranks in one set. The list of steps is the same on all ranks, drawn from one seed.
struct Step {
  enum class Kind { Reduce, Mismatch, Refuse, Gather };
  Kind kind = Kind::Reduce;
  uint32_t set = 0;
  int guilty = 0;  // Mismatch, Refuse: the index of the member that is wrong
};

struct Plan {
  std::map<uint32_t, std::vector<int>> sets;
  std::vector<std::vector<Step>> rounds;  // the steps of a round are submitted in any order
};

Plan random_plan(uint64_t seed, int size) {
  std::mt19937_64 random(seed);
  Plan plan;
  std::vector<int> all(static_cast<size_t>(size));
  std::iota(all.begin(), all.end(), 0);
  plan.sets[0] = all;
  for (uint32_t id = 1; id <= 4; ++id) {
    std::vector<int> ranks;
    while (ranks.empty()) {
      std::copy_if(all.begin(), all.end(), std::back_inserter(ranks),
                   [&](int) { return random() % 2 == 0; });
    }
    plan.sets[id] = ranks;
  }
  for (int round = 0; round < 12; ++round) {
    std::vector<Step>& steps = plan.rounds.emplace_back();
    for (int i = 0; i < 6; ++i) {
      Step step;
      step.set = static_cast<uint32_t>(random() % plan.sets.size());
      const uint64_t dice = random() % 10;
      const std::vector<int>& ranks = plan.sets[step.set];
      if (dice == 0 && ranks.size() > 1) step.kind = Step::Kind::Mismatch;
      if (dice == 1) step.kind = Step::Kind::Refuse;
      if (dice == 2) step.kind = Step::Kind::Gather;
      step.guilty = static_cast<int>(random() % ranks.size());
      steps.push_back(step);
    }
  }
  return plan;
}

// A submission in flight on one rank, and its expected result.
struct Running {
  Tensor tensor;
  std::vector<float> gathered;
  std::shared_ptr<HandleState> handle;
  const Step* step = nullptr;
  bool refused_here = false;
};

void begin(Runtime& runtime, const std::vector<int>& ranks, int rank, const std::string& name,
           Running& run) {
  const Step& step = *run.step;
  const bool guilty = ranks[static_cast<size_t>(step.guilty)] == rank;
  if (step.kind == Step::Kind::Refuse && guilty) {
    runtime.refuse(name, "no good", step.set);
    run.refused_here = true;
    return;
  }
  const bool longer = step.kind == Step::Kind::Mismatch && guilty;
  run.tensor = tensor(std::vector<float>(longer ? 3 : 2, static_cast<float>(rank + 1)));
  Submission mine = in_set(step.set, name, run.tensor);
  if (step.kind == Step::Kind::Gather) {
    run.tensor.spec->kind = CollectiveKind::Allgather;
    mine.memory.front().output = nullptr;
    mine.allocate_output = [&run](size_t, int64_t elements, MemoryQueue&) {
      run.gathered.resize(static_cast<size_t>(elements));
      return reinterpret_cast<std::byte*>(run.gathered.data());
    };
  }
  run.handle = runtime.submit(std::move(mine));
}

void check(const std::vector<int>& ranks, const Running& run) {
  if (run.refused_here) return;
  const std::string error = error_of(*run.handle);
  float sum = 0;
  std::vector<float> rows;
  for (const int rank : ranks) {
    sum += static_cast<float>(rank + 1);
    rows.insert(rows.end(), 2, static_cast<float>(rank + 1));
  }
  const int guilty = ranks[static_cast<size_t>(run.step->guilty)];
  switch (run.step->kind) {
    case Step::Kind::Reduce:
      EXPECT_EQ(error, "");
      EXPECT_THAT(run.tensor.data, ElementsAre(sum, sum));
      return;
    case Step::Kind::Gather:
      EXPECT_EQ(error, "");
      EXPECT_EQ(run.gathered, rows);
      return;
    case Step::Kind::Mismatch:
      EXPECT_THAT(error, HasSubstr("[3] on rank " + std::to_string(guilty)));
      return;
    case Step::Kind::Refuse:
      EXPECT_THAT(error, HasSubstr("refused on rank " + std::to_string(guilty)));
      return;
  }
}

void run_plan(Runtime& runtime, int rank, const Plan& plan, uint64_t seed) {
  std::mt19937_64 random(seed * 100 + static_cast<uint64_t>(rank));
  for (const auto& [id, ranks] : plan.sets) {
    if (id > 0) add(runtime, id, ranks);
  }
  for (size_t round = 0; round < plan.rounds.size(); ++round) {
    const std::vector<Step>& steps = plan.rounds[round];
    std::vector<size_t> order(steps.size());
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<Running> running(steps.size());
    for (const size_t i : order) {
      const std::vector<int>& ranks = plan.sets.at(steps[i].set);
      if (!has(ranks, rank)) continue;
      if (random() % 8 == 0) std::this_thread::sleep_for(1ms);
      running[i].step = &steps[i];
      begin(runtime, ranks, rank, "t" + std::to_string(i), running[i]);
    }
    for (const Running& run : running) {
      if (run.step != nullptr) check(plan.sets.at(run.step->set), run);
    }
  }
  for (const auto& [id, ranks] : plan.sets) {
    if (id > 0 && has(ranks, rank)) runtime.remove_set(id);
  }
}

TEST(ProcessSets, RandomProgramsAgainstASequentialModel) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    for (const int size : {1, 2, 4}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << size << " ranks");
      const Plan plan = random_plan(seed, size);
      World world(size, {.op_polls = static_cast<int>(seed % 3), .copy_polls = 1});
      world.each([&](Runtime& runtime, int rank) { run_plan(runtime, rank, plan, seed); });
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(ProcessSets, AnOpThatFailsInOneSetEndsTheJobEverywhere) {
  // Before anything is frozen: then both members have started what fails.
  World world(3, {.fail_op_at_sequence = 2});
  std::latch outsider_waits(1);
  world.each([&](Runtime& runtime, int rank) {
    add(runtime, 1, {0, 1});
    // The runtime keeps the memory to which a failed collective may still write.
    const auto x = std::make_shared<Tensor>(tensor({1}));
    const auto kept = [&](Submission mine) {
      mine.keep_alive = x;
      return mine;
    };
    std::string error;
    if (rank == 2) {
      // Rank 2 is not in the set and waits for something else. Once the job has ended, submit()
      // throws, and even the last barrier of add() may fail here: so the others wait for this.
      const auto handle = runtime.submit(kept(submission("for ever", *x)));
      outsider_waits.count_down();
      error = error_of(*handle);
    } else {
      outsider_waits.wait();
    }
    for (int i = 0; i < 5 && rank < 2 && error.empty(); ++i) {
      try {
        error = error_of(*runtime.submit(kept(in_set(1, "x", *x))));
      } catch (const Error& thrown) {
        error = thrown.what();
      }
    }
    EXPECT_THAT(error, HasSubstr("fake network is down"));
    EXPECT_GT(x.use_count(), rank == 2 ? 0 : 1);
  });
}

// An aborted op lets its events happen, whatever is in memory then. Work of other sets may wait for
// these events, so the handles of all sets must get the error before.
TEST(ProcessSets, AllHandlesHaveFailedBeforeAnyOpIsAborted) {
  std::shared_ptr<HandleState> waiting[2];
  std::atomic<int> aborts{0}, too_early{0};
  FakeDelays delays{.fail_op_at_sequence = 2};  // after the two barriers of add()
  delays.on_abort = [&](int rank) {
    ++aborts;
    if (!waiting[rank]->finished()) ++too_early;
  };
  {  // to the end: a rank may still abort when its handles have failed
    World world(2, delays, no_limits());
    world.each([&](Runtime& runtime, int rank) {
      add(runtime, 1, {0, 1});
      const auto x = std::make_shared<Tensor>(tensor({1}));
      const auto kept = [&](Submission given) {
        given.keep_alive = x;
        return given;
      };
      Submission never_ready = kept(in_set(1, "y", *x));
      std::atomic<bool> begun{false};
      never_ready.ready = std::make_unique<PolledEvent>([&begun] {
        begun = true;
        return false;
      });
      waiting[rank] = runtime.submit(std::move(never_ready));
      while (!begun) std::this_thread::yield();
      EXPECT_THAT(error_of(*runtime.submit(kept(submission("x", *x)))),
                  HasSubstr("fake network is down"));
      EXPECT_THAT(error_of(*waiting[rank]), HasSubstr("fake network is down"));
    });
  }
  EXPECT_EQ(aborts, 4) << "two sets on two ranks";
  EXPECT_EQ(too_early, 0);
}

TEST(ProcessSets, ShutdownLeavesAllSets) {
  World world(3);
  world.each([](Runtime& runtime, int rank) {
    add(runtime, 1, {1, 2});
    Tensor x = tensor({1});
    if (rank == 1) {
      EXPECT_EQ(runtime.shutdown(kLongEnough), "");
      return;
    }
    if (rank == 2) {
      EXPECT_THAT(error_of(*runtime.submit(in_set(1, "x", x))),
                  HasSubstr("rank 1 has left the process set, or shut down, without submitting"));
    }
    EXPECT_EQ(runtime.shutdown(kLongEnough), "");
  });
}

TEST(ProcessSets, ARemovalEndsAlsoIfAnotherThreadLeavesTheSet) {
  World world(2);
  std::latch both(1);
  world.each([&](Runtime& runtime, int rank) {
    add(runtime, 1, {0, 1});
    if (rank == 1) {
      both.wait();
      return runtime.remove_set(1);
    }
    const std::jthread removes([&] { runtime.remove_set(1); });
    std::this_thread::sleep_for(5ms);  // so that it mostly comes first
    runtime.leave_set(1);
    both.count_down();
  });
}

// What the statistics say of the sets that are here must not grow with those that were.
TEST(ProcessSets, ARemovedSetHasNoScratch) {
  World world(1);
  world.each([](Runtime& runtime, int) {
    const uint64_t before = runtime.statistics().scratch_bytes;
    add(runtime, 1, {0});
    Tensor x = tensor({1}), y = tensor({2});
    Submission packed = in_set(1, "packed", x);
    x.spec->parts.push_back({"y", {1}});
    auto* const data = reinterpret_cast<std::byte*>(y.data.data());
    packed.memory.push_back({data, data, 1});
    EXPECT_EQ(error_of(*runtime.submit(std::move(packed))), "");
    EXPECT_GT(runtime.statistics().scratch_bytes, before);
    runtime.remove_set(1);
    EXPECT_EQ(runtime.statistics().scratch_bytes, before);
  });
}

// Delivers the last message about a set once more when told to.
class Repeats final : public ForwardingTransport {
 public:
  Repeats(std::unique_ptr<Transport> below, uint32_t set, std::atomic<bool>& repeat)
      : ForwardingTransport(std::move(below)), set_(set), repeat_(repeat) {}
  std::optional<Message> receive() override {
    std::optional<Message> message = ForwardingTransport::receive();
    if (message) {
      if (!is_farewell(message->bytes) && set_of(message->bytes) == set_) last_ = message;
      return message;
    }
    if (!repeat_ || !last_) return std::nullopt;
    repeat_ = false;
    return std::exchange(last_, std::nullopt);
  }

 private:
  const uint32_t set_;
  std::atomic<bool>& repeat_;
  std::optional<Message> last_;
};

// It was sent before the set was removed, and the network has kept it.
TEST(ProcessSets, AMessageAboutARemovedSetIsIgnored) {
  for (const uint32_t set : {uint32_t{1}, kFirstNumberedSet + 1}) {
    std::atomic<bool> repeat{false};
    Hooks hooks;
    hooks.wrap_transport = [&](int rank, std::unique_ptr<Transport> below) {
      if (rank == 0) return below;
      return std::unique_ptr<Transport>(new Repeats(std::move(below), set, repeat));
    };
    World world(2, {}, no_limits(), hooks);
    world.each([&](Runtime& runtime, int rank) {
      add(runtime, set, {0, 1});
      Tensor x = tensor({1});
      EXPECT_EQ(error_of(*runtime.submit(in_set(set, "x", x))), "");
      runtime.remove_set(set);
      if (rank == 1) {
        repeat = true;
        while (repeat) std::this_thread::sleep_for(1ms);
      }
      barrier(runtime, "later");
      EXPECT_EQ(runtime.fatal_error(), nullptr);
    });
  }
}

TEST(ProcessSets, CallsForASetThatIsNotHereAreNamed) {
  World world(2);
  world.each([](Runtime& runtime, int rank) {
    add(runtime, 1, {1});
    Tensor x = tensor({1});
    const auto text_of = [&](uint32_t set) -> std::string {
      try {
        return error_of(*runtime.submit(in_set(set, "x", x)));
      } catch (const Error& error) {
        return error.what();
      }
    };
    EXPECT_THAT(text_of(7), HasSubstr("is not in process set 7"));
    if (rank == 0) {
      EXPECT_THAT(text_of(1), HasSubstr("rank 0 is not in process set 1"));
    } else {
      EXPECT_EQ(text_of(1), "");
    }
    Tensor y = tensor({1});
    EXPECT_EQ(error_of(*runtime.submit(submission("y", y))), "");
  });
}

}  // namespace
}  // namespace horon::core
