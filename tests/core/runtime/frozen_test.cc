// Collectives that repeat on ranks that are threads: they start without a message, and any
// difference is handled as if nothing had been frozen.
#include <atomic>
#include <barrier>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

using namespace test_world;

constexpr int kRanks = 3;

// Runs one collective of all ranks and waits for it.
void sum(Runtime& runtime, const std::string& name, int rank) {
  Tensor x = tensor({1.0F * rank, 2.0F});
  ASSERT_EQ(error_of(*runtime.run(submission(name, x))), "");
  ASSERT_THAT(x.data, ElementsAre(3, 6));
}

void five_names(Runtime& runtime, int rank, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    for (const char* name : {"a", "b", "c", "d", "e"}) sum(runtime, name, rank);
  }
}

TEST(Frozen, AThousandRoundsSendNoMessage) {
  World world(kRanks, {}, no_limits());
  std::barrier all(kRanks);
  std::atomic<uint64_t> before{0};
  std::atomic<uint64_t> after{0};
  world.each([&](Runtime& runtime, int rank) {
    five_names(runtime, rank, 10);
    all.arrive_and_wait();
    EXPECT_EQ(runtime.statistics().freezes, 5U);
    const uint64_t starts = runtime.statistics().frozen_starts;
    before += runtime.statistics().control_messages_sent;
    five_names(runtime, rank, 1000);
    all.arrive_and_wait();
    after += runtime.statistics().control_messages_sent;
    EXPECT_EQ(runtime.statistics().frozen_starts, starts + 5000);
    EXPECT_EQ(runtime.statistics().thaws, 0U);
    all.arrive_and_wait();
  });
  EXPECT_GT(before, 0U);
  EXPECT_EQ(after, before);
}

// A program that submits many small tensors and then waits for all: they fuse as they come, and
// nothing is sent.
TEST(Frozen, SmallEntriesThatComeTogetherAreFrozenToo) {
  constexpr int tensors = 64;
  constexpr int rounds = 200;
  World world(kRanks, {}, no_limits());
  std::barrier all(kRanks);
  std::atomic<uint64_t> before{0};
  std::atomic<uint64_t> after{0};
  const auto run_rounds = [](Runtime& runtime, int rank, int count) {
    std::vector<Tensor> values(tensors);
    for (int round = 0; round < count; ++round) {
      std::vector<std::shared_ptr<HandleState>> handles;
      for (int i = 0; i < tensors; ++i) {
        const int which = (i * (rank == 1 ? 5 : 1) + rank) % tensors;  // each in its own order
        Tensor& x = values[static_cast<size_t>(which)];
        x = tensor({1.0F * static_cast<float>(which), static_cast<float>(rank)});
        handles.push_back(runtime.submit(submission("t" + std::to_string(which), x)));
      }
      for (const auto& handle : handles) ASSERT_EQ(error_of(*handle), "");
      for (int i = 0; i < tensors; ++i) {
        ASSERT_THAT(values[static_cast<size_t>(i)].data, ElementsAre(3.0F * i, 3.0F));
      }
    }
  };
  world.each([&](Runtime& runtime, int rank) {
    run_rounds(runtime, rank, 10);
    all.arrive_and_wait();
    EXPECT_EQ(runtime.statistics().freezes, uint64_t{tensors});
    const uint64_t starts = runtime.statistics().frozen_starts;
    before += runtime.statistics().control_messages_sent;
    run_rounds(runtime, rank, rounds);
    all.arrive_and_wait();
    after += runtime.statistics().control_messages_sent;
    const Statistics now = runtime.statistics();
    EXPECT_EQ(now.frozen_starts, starts + tensors * rounds);
    EXPECT_GE(now.frozen_batches, uint64_t{rounds});
    EXPECT_LE(now.frozen_batches, now.frozen_starts);
    EXPECT_LE(now.negotiated_batches, now.negotiated_starts);
    EXPECT_EQ(now.thaws, 0U);
    all.arrive_and_wait();
  });
  EXPECT_EQ(after, before);
}

// A bucket with a parameter that is unused on rank 1, and one that is unused everywhere.
TEST(Frozen, PartsThatAreAlwaysAbsentStayAbsent) {
  World world(kRanks, {}, no_limits());
  std::barrier all(kRanks);
  world.each([&](Runtime& runtime, int rank) {
    uint64_t starts = 0;
    for (int round = 0; round < 60; ++round) {
      Tensor x = tensor({1, 2, 0});
      x.spec->parts = {{"a", {1}}, {"b", {1}}, {"c", {1}}};
      const bool one_more = round == 40;  // rank 1 uses its parameter, once
      Submission bucket = submission("bucket", x);
      bucket.absent = {false, rank == 1 && !one_more, true};
      const auto handle = runtime.run(std::move(bucket));
      ASSERT_EQ(error_of(*handle), "");
      ASSERT_THAT(handle->outcome().produced, ElementsAre(true, true, false)) << round;
      if (round == 39) starts = runtime.statistics().frozen_starts;
    }
    all.arrive_and_wait();
    EXPECT_EQ(starts, 37U);
    EXPECT_EQ(runtime.statistics().thaws, 1U);
    EXPECT_EQ(runtime.statistics().freezes, 2U);
    all.arrive_and_wait();
  });
}

// Each rank has rows of its own, the same in each round but one.
TEST(Frozen, RowsThatStayTheSameSendNoMessage) {
  World world(kRanks, {}, no_limits());
  std::barrier all(kRanks);
  std::atomic<uint64_t> before{0};
  std::atomic<uint64_t> after{0};
  world.each([&](Runtime& runtime, int rank) {
    for (int round = 0; round < 60; ++round) {
      const int one_more = round == 40 && rank == 1 ? 1 : 0;
      Tensor x = tensor(std::vector<float>(static_cast<size_t>(rank + one_more), 1.0F * rank),
                        CollectiveKind::Allgather);
      std::vector<float> out;
      Submission gather = submission("rows", x);
      gather.allocate_output = [&](size_t, int64_t elements, MemoryQueue&) {
        out.resize(static_cast<size_t>(elements));
        return reinterpret_cast<std::byte*>(out.data());
      };
      if (round == 4) before += runtime.statistics().control_messages_sent;
      const auto handle = runtime.run(std::move(gather));
      ASSERT_EQ(error_of(*handle), "");
      ASSERT_THAT(handle->outcome().received, ElementsAre(0, 1 + (round == 40 ? 1 : 0), 2));
      if (round == 40) {
        ASSERT_THAT(out, ElementsAre(1, 1, 2, 2));
      } else {
        ASSERT_THAT(out, ElementsAre(1, 2, 2)) << round;
      }
      if (round != 39) continue;
      after += runtime.statistics().control_messages_sent;
      EXPECT_EQ(runtime.statistics().frozen_starts, 37U);
      all.arrive_and_wait();
    }
    all.arrive_and_wait();
    EXPECT_EQ(runtime.statistics().thaws, 1U);
    EXPECT_EQ(runtime.statistics().freezes, 2U);
    all.arrive_and_wait();
  });
  EXPECT_EQ(after, before);
}

TEST(Frozen, TheKnobTurnsItOff) {
  Config config = no_limits();
  config.freeze = false;
  World world(kRanks, {}, config);
  world.each([](Runtime& runtime, int rank) {
    five_names(runtime, rank, 10);
    EXPECT_EQ(runtime.statistics().freezes, 0U);
    EXPECT_EQ(runtime.statistics().frozen_starts, 0U);
  });
}

TEST(Frozen, RanksThatTakeTheirTimeStayFrozen) {
  World world(kRanks, {}, no_limits());
  world.each([](Runtime& runtime, int rank) {
    five_names(runtime, rank, 10);
    for (int round = 0; round < 5; ++round) {
      if (rank == round % kRanks) std::this_thread::sleep_for(20ms);
      five_names(runtime, rank, 1);
    }
    EXPECT_EQ(runtime.statistics().freezes, 5U);
  });
}

TEST(Frozen, AMismatchIsTheSameErrorEverywhereAndAllGoesOn) {
  World world(kRanks, {}, no_limits());
  world.each([](Runtime& runtime, int rank) {
    five_names(runtime, rank, 10);
    Tensor x = tensor(rank == 1 ? std::vector<float>{1} : std::vector<float>{1, 2});
    const std::string error = error_of(*runtime.run(submission("c", x)));
    EXPECT_THAT(error, HasSubstr("[1] on rank 1"));
    EXPECT_THAT(error, HasSubstr("[2] on ranks 0 and 2"));
    five_names(runtime, rank, 20);
    EXPECT_EQ(runtime.statistics().freezes, 6U);
    EXPECT_EQ(runtime.statistics().thaws, 1U);
  });
}

TEST(Frozen, ARefusalFailsEverywhere) {
  World world(kRanks, {}, no_limits());
  world.each([](Runtime& runtime, int rank) {
    five_names(runtime, rank, 10);
    if (rank == 2) {
      runtime.refuse("d", "no good");
    } else {
      Tensor x = tensor({1, 2});
      EXPECT_THAT(error_of(*runtime.run(submission("d", x))), HasSubstr("refused on rank 2"));
    }
    five_names(runtime, rank, 10);
  });
}

TEST(Frozen, JoinThawsAndTheRestGoesOn) {
  World world(kRanks, {}, no_limits());
  world.each([](Runtime& runtime, int rank) {
    five_names(runtime, rank, 10);
    for (int round = 0; round < rank; ++round) {
      Tensor x = tensor({1, 2});
      ASSERT_EQ(error_of(*runtime.run(submission("a", x))), "");
      const auto present = static_cast<float>(kRanks - 1 - round);
      EXPECT_THAT(x.data, ElementsAre(present, 2 * present));
    }
    EXPECT_EQ(error_of(*runtime.join()), "");
    five_names(runtime, rank, 10);
    EXPECT_EQ(runtime.statistics().thaws, 5U);
    EXPECT_EQ(runtime.statistics().freezes, 10U);
  });
}

constexpr const char* kMissing = "tensor \"b\": waiting for rank 1";

void expect_stall_report(int missing) {
  Config config = no_limits();
  config.stall_warn_s = 0.4;
  World world(kRanks, {}, config);
  std::barrier told(kRanks);
  world.each([&](Runtime& runtime, int rank) {
    five_names(runtime, rank, 10);
    Tensor x = tensor({1.0F * rank, 2.0F});
    if (rank == missing) told.arrive_and_wait();
    const auto handle = runtime.submit(submission("b", x));
    if (rank != missing) {
      wait_for_report(runtime, "tensor \"b\": waiting for rank " + std::to_string(missing));
      told.arrive_and_wait();
    }
    EXPECT_EQ(error_of(*handle), "");
    EXPECT_THAT(x.data, ElementsAre(3, 6));
  });
}

TEST(Frozen, AStallIsReportedByName) { expect_stall_report(1); }

TEST(Frozen, AStallOnTheCoordinatorIsReportedByName) { expect_stall_report(0); }

// All ranks go on with other names, so markers and Go entries keep coming while "b" waits. One rank
// has filled "b", and another holds it back because its shape is not the frozen one.
TEST(Frozen, AStallIsReportedByNameWhileOtherNamesGoOn) {
  Config config = no_limits();
  config.stall_warn_s = 0.4;
  World world(kRanks, {}, config);
  std::atomic<int> told{0};
  world.each([&](Runtime& runtime, int rank) {
    five_names(runtime, rank, 10);
    Tensor x = tensor(rank == 0 ? std::vector<float>{1} : std::vector<float>{1, 2});
    std::shared_ptr<HandleState> handle;
    if (rank != 1) handle = runtime.submit(submission("b", x));
    bool seen = rank == 1;
    int round = 0;
    for (bool over = false; !over;) {
      if (!seen && runtime.stall_report().find(kMissing) != std::string::npos) {
        seen = true;
        ++told;
      }
      sum(runtime, "negotiated " + std::to_string(++round), rank);
      Tensor all_told = tensor({rank == 0 && told == kRanks - 1 ? 1.0F : 0.0F, 0.0F});
      ASSERT_EQ(error_of(*runtime.run(submission("c", all_told))), "");
      over = all_told.data[0] > 0;
    }
    if (handle == nullptr) handle = runtime.submit(submission("b", x));
    EXPECT_THAT(error_of(*handle), HasSubstr("[1] on rank 0"));
  });
}

// With a warning, and without one.
TEST(Frozen, AStallEndsTheJobByName) {
  for (const double stall_warn_s : {0.2, 0.0}) {
    Config config = no_limits();
    config.stall_warn_s = stall_warn_s;
    config.stall_abort_s = 4;  // longer than any rank here is late but by intent
    World world(kRanks, {}, config);
    std::barrier all(kRanks);
    world.each([&](Runtime& runtime, int rank) {
      five_names(runtime, rank, 10);
      all.arrive_and_wait();
      Tensor x = tensor({1.0F * rank, 2.0F});
      if (rank != 1) {
        EXPECT_THAT(error_of(*runtime.submit(submission("b", x))), HasSubstr(kMissing));
      }
      all.arrive_and_wait();
      if (rank != 1) {
        EXPECT_THROW(runtime.submit(submission("b", x)), Error);
        return;
      }
      try {  // this rank may not have the error yet
        EXPECT_THAT(error_of(*runtime.submit(submission("b", x))), HasSubstr(kMissing));
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr(kMissing));
      }
    });
  }
}

TEST(Frozen, EachProcessSetHasItsOwn) {
  World world(kRanks, {}, no_limits());
  std::barrier all(kRanks);
  world.each([&](Runtime& runtime, int rank) {
    runtime.add_set(1, {0, 2});
    all.arrive_and_wait();
    for (int round = 0; rank != 1 && round < 50; ++round) {
      Tensor x = tensor({1, 2});
      Submission in_set = submission("x", x);
      in_set.set = 1;
      ASSERT_EQ(error_of(*runtime.run(std::move(in_set))), "");
      ASSERT_THAT(x.data, ElementsAre(2, 4));
    }
    EXPECT_EQ(runtime.statistics().freezes, rank == 1 ? 0U : 1U);
    five_names(runtime, rank, 20);
    runtime.remove_set(1);
    five_names(runtime, rank, 20);
  });
}

}  // namespace
}  // namespace horon::core
