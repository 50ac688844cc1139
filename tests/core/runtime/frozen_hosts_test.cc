// Collectives that come again and again on ranks of several hosts: they start with one small
// message up and one down for each host but the coordinator's.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using namespace test_world;

// Runs `program` on ranks of these hosts, and passes the number of ranks.
void on_hosts(const std::vector<int>& host_of, const Config& config,
              const std::function<void(Runtime&, int rank, int size)>& program) {
  Hooks hooks;
  hooks.host_of = host_of;
  const int size = static_cast<int>(host_of.size());
  World world(size, {}, config, hooks);
  world.each([&](Runtime& runtime, int rank) { program(runtime, rank, size); });
}

// Runs one collective of all ranks and waits for it: each gives 1 and its rank.
void sum(Runtime& runtime, const std::string& name, int rank, int size) {
  Tensor x = tensor({1.0F, static_cast<float>(rank)});
  ASSERT_EQ(error_of(*runtime.run(submission(name, x))), "");
  ASSERT_THAT(x.data, ElementsAre(size, size * (size - 1) / 2));
}

void three_names(Runtime& runtime, int rank, int size, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    for (const char* name : {"a", "b", "c"}) sum(runtime, name, rank, size);
  }
}

uint64_t hosts_of(const std::vector<int>& host_of) {
  return static_cast<uint64_t>(*std::max_element(host_of.begin(), host_of.end())) + 1;
}

TEST(FrozenBetweenHosts, AStartTakesTwoMessagesForEachHost) {
  constexpr uint64_t rounds = 100;
  for (const std::vector<int>& host_of : std::vector<std::vector<int>>{
           {0, 1}, {0, 0, 1}, {0, 1, 1}, {0, 1, 2}, {0, 1, 0, 1}, {0, 0, 1, 1, 2}}) {
    std::barrier all(std::ssize(host_of));
    std::atomic<uint64_t> before{0};
    std::atomic<uint64_t> after{0};
    on_hosts(host_of, no_limits(), [&](Runtime& runtime, int rank, int size) {
      three_names(runtime, rank, size, 10);
      all.arrive_and_wait();
      EXPECT_EQ(runtime.statistics().freezes, 3U);
      const Statistics at_first = runtime.statistics();
      before += at_first.control_messages_sent;
      all.arrive_and_wait();
      three_names(runtime, rank, size, rounds);
      all.arrive_and_wait();
      const Statistics now = runtime.statistics();
      after += now.control_messages_sent;
      EXPECT_EQ(now.frozen_starts, at_first.frozen_starts + 3 * rounds);
      EXPECT_EQ(now.negotiated_starts, at_first.negotiated_starts);
      EXPECT_EQ(now.thaws, 0U);
      EXPECT_EQ(now.void_starts, 0U);
      all.arrive_and_wait();
    });
    EXPECT_EQ(after - before, 2 * 3 * rounds * (hosts_of(host_of) - 1)) << host_of.size();
  }
}

// Several places that are filled in one turn travel in one message.
TEST(FrozenBetweenHosts, WhatComesTogetherTravelsTogether) {
  constexpr int tensors = 64;
  constexpr int rounds = 50;
  const std::vector<int> host_of = {0, 0, 1};
  std::barrier all(std::ssize(host_of));
  std::atomic<uint64_t> before{0};
  std::atomic<uint64_t> after{0};
  on_hosts(host_of, no_limits(), [&](Runtime& runtime, int rank, int size) {
    const auto run_rounds = [&](int count) {
      std::vector<Tensor> values(tensors);
      for (int round = 0; round < count; ++round) {
        std::vector<std::shared_ptr<HandleState>> handles;
        for (int i = 0; i < tensors; ++i) {
          const int which = (i * (rank == 1 ? 5 : 1) + rank) % tensors;  // each in its own order
          Tensor& x = values[static_cast<size_t>(which)];
          x = tensor({static_cast<float>(which), 1.0F});
          handles.push_back(runtime.submit(submission("t" + std::to_string(which), x)));
        }
        for (const auto& handle : handles) ASSERT_EQ(error_of(*handle), "");
        for (int i = 0; i < tensors; ++i) {
          ASSERT_THAT(values[static_cast<size_t>(i)].data, ElementsAre(size * i, size));
        }
      }
    };
    run_rounds(10);
    all.arrive_and_wait();
    EXPECT_EQ(runtime.statistics().freezes, uint64_t{tensors});
    before += runtime.statistics().control_messages_sent;
    all.arrive_and_wait();
    run_rounds(rounds);
    all.arrive_and_wait();
    EXPECT_EQ(runtime.statistics().thaws, 0U);
    after += runtime.statistics().control_messages_sent;
    all.arrive_and_wait();
  });
  EXPECT_LE(after - before, uint64_t{2} * tensors * rounds);
}

TEST(FrozenBetweenHosts, AMismatchAJoinAndARefusalThawAndAllGoesOn) {
  on_hosts({0, 0, 1, 1}, no_limits(), [](Runtime& runtime, int rank, int size) {
    three_names(runtime, rank, size, 10);
    Tensor x = tensor(rank == 3 ? std::vector<float>{1} : std::vector<float>{1, 2});
    EXPECT_THAT(error_of(*runtime.run(submission("c", x))), HasSubstr("[1] on rank 3"));
    three_names(runtime, rank, size, 20);
    EXPECT_GE(runtime.statistics().freezes, 4U);
    EXPECT_GE(runtime.statistics().thaws, 1U);
    if (rank == 2) {
      runtime.refuse("b", "no good");
    } else {
      Tensor y = tensor({1, 2});
      EXPECT_THAT(error_of(*runtime.run(submission("b", y))), HasSubstr("refused on rank 2"));
    }
    three_names(runtime, rank, size, 20);
    for (int round = 0; round < rank; ++round) {
      Tensor y = tensor({1, 2});
      ASSERT_EQ(error_of(*runtime.run(submission("a", y))), "");
      const auto present = static_cast<float>(size - 1 - round);
      EXPECT_THAT(y.data, ElementsAre(present, 2 * present));
    }
    EXPECT_EQ(error_of(*runtime.join()), "");
    three_names(runtime, rank, size, 10);
  });
}

// Every rank may be the late one: the coordinator, the first of the other host, the last.
TEST(FrozenBetweenHosts, AStallIsReportedByName) {
  Config config = no_limits();
  config.stall_warn_s = 0.4;
  for (const int late : {0, 1, 3}) {
    std::barrier told(4);
    on_hosts({0, 1, 0, 1}, config, [&](Runtime& runtime, int rank, int size) {
      three_names(runtime, rank, size, 10);
      Tensor x = tensor({1.0F, 2.0F});
      if (rank == late) told.arrive_and_wait();
      const auto handle = runtime.submit(submission("b", x));
      if (rank != late) {
        wait_for_report(runtime, "tensor \"b\": waiting for rank " + std::to_string(late));
        told.arrive_and_wait();
      }
      EXPECT_EQ(error_of(*handle), "");
      EXPECT_THAT(x.data, ElementsAre(4, 8));
    });
  }
}

TEST(FrozenBetweenHosts, AProcessSetOfTwoHostsHasGatesOfItsOwn) {
  const std::vector<int> host_of = {0, 0, 1, 1};
  std::barrier all(std::ssize(host_of));
  on_hosts(host_of, no_limits(), [&](Runtime& runtime, int rank, int size) {
    runtime.add_set(1, {1, 2, 3});
    all.arrive_and_wait();
    for (int round = 0; rank != 0 && round < 50; ++round) {
      Tensor x = tensor({1, 2});
      Submission in_set = submission("x", x);
      in_set.set = 1;
      ASSERT_EQ(error_of(*runtime.run(std::move(in_set))), "");
      ASSERT_THAT(x.data, ElementsAre(3, 6));
    }
    EXPECT_EQ(runtime.statistics().freezes, rank == 0 ? 0U : 1U);
    three_names(runtime, rank, size, 20);
    runtime.remove_set(1);
    three_names(runtime, rank, size, 20);
  });
}

}  // namespace
}  // namespace horon::core
