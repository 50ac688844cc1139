// What is chosen, as tables: for the defaults, and for machines of other speeds.
#include "horon/ops/choice/algorithm.h"

#include <vector>

#include <gtest/gtest.h>

namespace horon::ops {
namespace {

constexpr int64_t kKiB = 1 << 10;
constexpr int64_t kMiB = 1 << 20;
constexpr MachineConstants kDefaults;

Situation on_one_host(CollectiveKind kind, int ranks, int64_t bytes) {
  Situation situation;
  situation.kind = kind;
  situation.ranks_of_host = ranks;
  situation.bytes = bytes;
  situation.cell_bytes = 8 * kKiB;
  return situation;
}

// Sums come back in the type in which they go.
Situation allreduce_between(int hosts, int64_t bytes) {
  Situation situation;
  situation.reach = Reach::Hosts;
  situation.hosts = hosts;
  situation.bytes = bytes;
  situation.result_bytes = bytes;
  return situation;
}

Situation broadcast_between(int hosts, int64_t bytes) {
  Situation situation = allreduce_between(hosts, bytes);
  situation.kind = CollectiveKind::Broadcast;
  situation.chunk_bytes = 56 * kKiB;
  return situation;
}

TEST(Algorithm, OfAnAllreduceOnOneHost) {
  struct Row {
    int ranks;
    int64_t bytes;
    double handoff_us;
    Algorithm algorithm;
  };
  const std::vector<Row> rows = {
      {2, 4, 4, Algorithm::Cells},
      {2, 8 * kKiB, 4, Algorithm::Cells},
      {2, 8 * kKiB + 1, 4, Algorithm::Pieces},
      {4, 8 * kKiB, 4, Algorithm::Cells},
      {8, 4 * kKiB, 4, Algorithm::Cells},
      {8, 4 * kKiB + 4, 4, Algorithm::Pieces},
      {64, 512, 4, Algorithm::Cells},
      {128, 512, 4, Algorithm::Cells},
      {64, 516, 4, Algorithm::Pieces},
      // Where a hand-off is quick, a second one costs less than to read the inputs of all.
      {8, 4 * kKiB, 1, Algorithm::Pieces},
      {8, 1 * kKiB, 1, Algorithm::Cells},
      {64, 512, 0.05, Algorithm::Cells},
      // More than a cell holds goes in pieces on any machine.
      {2, 8 * kKiB + 4, 1000, Algorithm::Pieces},
  };
  for (const Row& row : rows) {
    MachineConstants constants;
    constants.handoff_us = row.handoff_us;
    EXPECT_EQ(
        choose_algorithm(on_one_host(CollectiveKind::Allreduce, row.ranks, row.bytes), constants),
        Choice{row.algorithm})
        << row.ranks << " ranks, " << row.bytes << " bytes, " << row.handoff_us << " us";
  }
}

TEST(Algorithm, OfAnAllreduceBetweenHosts) {
  struct Row {
    int hosts;
    int64_t bytes;
    double message_us;
    double wire_bytes_per_us;
    Algorithm algorithm;
  };
  const std::vector<Row> rows = {
      // Two hosts send each other as much in one round as in two.
      {2, 4, 16, 1024, Algorithm::OneRound},
      {2, 64 * kMiB, 16, 1024, Algorithm::OneRound},
      {3, 4 * kKiB, 16, 1024, Algorithm::OneRound},
      {3, 24 * kKiB, 16, 1024, Algorithm::OneRound},
      {3, 25 * kKiB, 16, 1024, Algorithm::TwoRounds},
      {4, 10 * kKiB, 16, 1024, Algorithm::OneRound},
      {4, 11 * kKiB, 16, 1024, Algorithm::TwoRounds},
      {4, 4 * kMiB, 16, 1024, Algorithm::TwoRounds},
      // High latency: it pays to send more at once.
      {4, 100 * kKiB, 500, 1024, Algorithm::OneRound},
      {4, 4 * kMiB, 500, 1024, Algorithm::TwoRounds},
      // Low bandwidth.
      {4, 4 * kKiB, 16, 100, Algorithm::TwoRounds},
      {4, 1 * kKiB, 16, 100, Algorithm::OneRound},
  };
  for (const Row& row : rows) {
    MachineConstants constants;
    constants.message_us = row.message_us;
    constants.wire_bytes_per_us = row.wire_bytes_per_us;
    EXPECT_EQ(choose_algorithm(allreduce_between(row.hosts, row.bytes), constants),
              Choice{row.algorithm})
        << row.hosts << " hosts, " << row.bytes << " bytes";
  }
}

// Sums of 16-bit floats go in 32 bits and come back in 16.
TEST(Algorithm, ShorterResultsFavourTwoRounds) {
  Situation situation = allreduce_between(2, 16 * kMiB);
  situation.result_bytes /= 2;
  EXPECT_EQ(choose_algorithm(situation, kDefaults), Choice{Algorithm::TwoRounds});
}

// A chain if the transfer takes most of the time; few hops if the hops do.
TEST(Algorithm, OfABroadcastBetweenHosts) {
  const auto fan_out = [](int hosts, int64_t bytes, const MachineConstants& constants = {}) {
    const Choice choice = choose_algorithm(broadcast_between(hosts, bytes), constants);
    EXPECT_EQ(choice.algorithm, Algorithm::Tree);
    return choice.fan_out;
  };
  EXPECT_EQ(fan_out(1, kMiB), 1);
  EXPECT_EQ(fan_out(2, 4), 1);
  EXPECT_EQ(fan_out(2, 64 * kMiB), 1);
  EXPECT_EQ(fan_out(4, 64 * kMiB), 1);
  EXPECT_EQ(fan_out(16, 64 * kMiB), 1);
  EXPECT_EQ(fan_out(4, 4), 3);
  EXPECT_GT(fan_out(16, 64 * kKiB), 1);
  EXPECT_EQ(fan_out(64, kMiB), 2);
  EXPECT_EQ(fan_out(64, 256 * kMiB), 1);
  EXPECT_LT(fan_out(512, 4), 64);  // nobody sends to all others
  MachineConstants far;
  far.message_us = 10'000;
  EXPECT_GT(fan_out(16, 64 * kMiB, far), 1);
}

TEST(Algorithm, OfTheKindsThatHaveOneEach) {
  struct Row {
    CollectiveKind kind;
    Choice on_one_host;
    Choice between_four_hosts;
  };
  const std::vector<Row> rows = {
      {CollectiveKind::Broadcast, {Algorithm::Blocks}, {Algorithm::Tree, 1}},
      {CollectiveKind::Allgather, {Algorithm::Blocks}, {Algorithm::ToAll, 3}},
      {CollectiveKind::Reducescatter, {Algorithm::Blocks}, {Algorithm::Collect}},
      {CollectiveKind::Alltoall, {Algorithm::Blocks}, {Algorithm::Messages}},
      {CollectiveKind::Gather, {Algorithm::Blocks}, {Algorithm::Messages}},
      {CollectiveKind::Scatter, {Algorithm::Blocks}, {Algorithm::Messages}},
  };
  for (const Row& row : rows) {
    Situation situation = on_one_host(row.kind, 4, 4 * kMiB);
    EXPECT_EQ(choose_algorithm(situation, kDefaults), row.on_one_host);
    situation.reach = Reach::MpiAlone;
    EXPECT_EQ(choose_algorithm(situation, kDefaults), Choice{Algorithm::Mpi});
    situation = broadcast_between(4, 4 * kMiB);
    situation.kind = row.kind;
    EXPECT_EQ(choose_algorithm(situation, kDefaults), row.between_four_hosts);
  }
}

// Whatever is chosen, none of the others would take less by the same measure.
TEST(Algorithm, NoOtherTakesLess) {
  for (const double message_us : {0.1, 16.0, 1000.0, 1e6}) {
    for (const double wire : {0.1, 100.0, 1024.0, 1e6}) {
      MachineConstants constants;
      constants.message_us = message_us;
      constants.wire_bytes_per_us = wire;
      for (const int hosts : {2, 3, 5, 64}) {
        for (int64_t bytes = 4; bytes <= 256 * kMiB; bytes *= 4) {
          const Situation sum = allreduce_between(hosts, bytes);
          const double chosen = compared_us(sum, choose_algorithm(sum, constants), constants);
          for (const Algorithm other : {Algorithm::OneRound, Algorithm::TwoRounds}) {
            EXPECT_LE(chosen, compared_us(sum, {other}, constants));
          }
          const Situation spread = broadcast_between(hosts, bytes);
          const double best = compared_us(spread, choose_algorithm(spread, constants), constants);
          for (int fan_out = 1; fan_out < hosts; ++fan_out) {
            EXPECT_LE(best, compared_us(spread, {Algorithm::Tree, fan_out}, constants));
          }
        }
      }
    }
  }
}

TEST(Algorithm, HasWordsForPeople) {
  EXPECT_EQ(describe({Algorithm::TwoRounds}), "two rounds");
  EXPECT_EQ(describe({Algorithm::Tree, 1}), "chain");
  EXPECT_EQ(describe({Algorithm::Tree, 3}), "tree of fan-out 3");
}

TEST(CopiesByKernel, IfThatIsFasterUnlessAKnobSaysSo) {
  MachineConstants quick;
  quick.process_copy_bytes_per_us = 20'000;
  quick.ring_copy_bytes_per_us = 19'000;
  MachineConstants slow = quick;
  slow.process_copy_bytes_per_us = 9'000;
  EXPECT_TRUE(copies_by_kernel("auto", quick));
  EXPECT_FALSE(copies_by_kernel("auto", slow));
  EXPECT_TRUE(copies_by_kernel("on", slow));
  EXPECT_FALSE(copies_by_kernel("off", quick));
  EXPECT_TRUE(copies_by_kernel("auto", {})) << "where nobody has measured it";
}

}  // namespace
}  // namespace horon::ops
