// A rank steps late: another one has done all of the work, has ended its part of the collective and
// has given its memory back to the system, so that nobody can map it any more.
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/base/all_ranks.h"
#include "horon/core/base/text.h"
#include "horon/core/host/mapped_group.h"
#include "horon/ops/host/block_exchange.h"
#include "horon/ops/host/piece_allreduce.h"
#include "horon/tests/support/error_of.h"

namespace horon::ops {
namespace {

using core::Progress;

constexpr int64_t kElements = 64 << 10;
constexpr int64_t kHalf = kElements / 2;
constexpr size_t kBytes = kElements * sizeof(float);

enum class Among { Threads, Processes };
struct Collective {
  CollectiveKind kind;
  int root = 0;
};

// Calls something before each mapping.
class ObservedGroup final : public core::LocalGroup {
 public:
  explicit ObservedGroup(core::MappedGroup::Parts parts) : group_(std::move(parts)) {}
  int local_rank() const override { return group_.local_rank(); }
  int local_size() const override { return group_.local_size(); }
  bool available() const override { return true; }
  std::string unavailable_reason() const override { return ""; }
  core::Reach reach() const override { return group_.reach(); }
  core::Doorbell& doorbell(int rank) override { return group_.doorbell(rank); }
  std::byte* area() override { return group_.area(); }
  std::shared_ptr<std::byte> allocate(size_t bytes) override { return group_.allocate(bytes); }
  std::shared_ptr<std::byte> allocate_scratch(size_t bytes) override {
    return group_.allocate_scratch(bytes);
  }
  std::shared_ptr<std::byte> allocate_reused(size_t bytes) override {
    return group_.allocate_reused(bytes);
  }
  std::optional<core::SharedAddress> locate(const std::byte* data, size_t bytes) const override {
    return group_.locate(data, bytes);
  }
  std::byte* map(int rank, const core::SharedAddress& address) override {
    if (before_map) std::exchange(before_map, nullptr)();
    return group_.map(rank, address);
  }
  bool copies_between_processes() const override { return false; }
  std::string no_copies_reason() const override { return "not wanted"; }
  void read(int, std::byte*, uint64_t, size_t) override { FAIL(); }
  void write(int, uint64_t, const std::byte*, size_t) override { FAIL(); }
  std::vector<int> dead_local_ranks() override { return {}; }
  int process_id(int rank) const override { return group_.process_id(rank); }

  std::function<void()> before_map;  // the next one only

 private:
  core::MappedGroup group_;
};

float value(int rank, int64_t at) { return static_cast<float>(1000 * rank + at % 1000); }

// One of the ranks, which the test steps by turns.
struct Rank {
  std::unique_ptr<ObservedGroup> group;
  std::unique_ptr<PieceAllreduce> allreduce;
  std::unique_ptr<BlockExchange> exchange;
  std::shared_ptr<std::byte> input, output;
  std::unique_ptr<core::InFlight> flight;

  // False: it waits.
  bool step_until_done() {
    for (Progress progress = Progress::Advanced; progress == Progress::Advanced;) {
      progress = flight->step();
      if (progress == Progress::Done) return true;
    }
    return false;
  }
  void give_all_back() {
    flight.reset();
    input.reset();
    output.reset();
  }
};

// Keeps no page of a block that is given back.
std::vector<Rank> make_ranks(Among among, int size = 2) {
  const size_t allreduce_bytes = PieceAllreduce::area_bytes(size);
  const size_t area_bytes = allreduce_bytes + BlockExchange::area_bytes(size);
  std::vector<Rank> ranks(static_cast<size_t>(size));
  const auto home = std::make_shared<core::SharedSegment>(
      core::SharedSegment::create(ranks.size() * sizeof(core::Doorbell) + area_bytes));
  std::vector<std::shared_ptr<core::SharedHeap>> heaps;
  for (int rank = 0; rank < size; ++rank) {
    heaps.push_back(std::make_shared<core::SharedHeap>(0));
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    core::MappedGroup::Parts parts;
    parts.local_rank = static_cast<int>(rank);
    parts.ranks = core::all_ranks(size);
    parts.home = home;
    for (size_t other = 0; other < ranks.size(); ++other) {
      core::MappedGroup::Peer& peer = parts.peers.emplace_back();
      peer.process_id = getpid();
      if (other == rank || among == Among::Threads) peer.heap = heaps[other];
    }
    Rank& made = ranks[rank];
    made.group = std::make_unique<ObservedGroup>(std::move(parts));
    std::byte* const area = made.group->area();
    made.allreduce = std::make_unique<PieceAllreduce>(*made.group, area);
    made.exchange = std::make_unique<BlockExchange>(*made.group, area + allreduce_bytes, false);
  }
  return ranks;
}

void start(Rank& rank, const Collective& collective, int64_t count = kElements) {
  const int number = rank.group->local_rank();
  auto* const input = reinterpret_cast<float*>(rank.input.get());
  for (int64_t at = 0; at < kElements; ++at) input[at] = value(number, at);
  core::Batch batch;
  batch.kind = collective.kind;
  batch.root = collective.root;
  batch.count = count;
  batch.input = rank.input.get();
  batch.output = rank.output.get();
  if (collective.kind == CollectiveKind::Allreduce) {
    rank.flight = rank.allreduce->start(std::move(batch));
    return;
  }
  const std::vector<int64_t> halves(2, kHalf);
  if (collective.kind == CollectiveKind::Alltoall) batch.send_counts = halves;
  if (collective.kind != CollectiveKind::Broadcast) batch.receive_counts = halves;
  if (collective.kind == CollectiveKind::Allgather) batch.count = kHalf;
  rank.flight = rank.exchange->start(std::move(batch));
}

// What rank 1 gets.
float expected(const Collective& collective, int64_t at) {
  const int of = static_cast<int>(at / kHalf);
  switch (collective.kind) {
    case CollectiveKind::Allreduce:
      return value(0, at) + value(1, at);
    case CollectiveKind::Broadcast:
      return value(collective.root, at);
    case CollectiveKind::Allgather:
      return value(of, at % kHalf);
    default:
      return value(of, kHalf + at % kHalf);
  }
}

void check_result(const Rank& rank, const Collective& collective, int64_t count = kElements) {
  const bool is_root = collective.kind == CollectiveKind::Broadcast && collective.root == 1;
  const auto* const got =
      reinterpret_cast<const float*>(is_root ? rank.input.get() : rank.output.get());
  for (int64_t at = 0; at < count; ++at) ASSERT_EQ(got[at], expected(collective, at)) << at;
}

class LateRank : public testing::TestWithParam<std::tuple<Among, Collective>> {
 protected:
  void SetUp() override {
    for (Rank& rank : ranks_) {
      rank.input = rank.group->allocate(kBytes);
      rank.output = rank.group->allocate(kBytes);
      start(rank, collective_);
    }
  }
  // Rank 0 does all of the work.
  void end_the_other() {
    const auto address = ranks_[0].group->locate(ranks_[0].input.get(), kBytes);
    EXPECT_TRUE(ranks_[0].step_until_done());
    ranks_[0].give_all_back();
    EXPECT_NE(test::error_of([&] { ranks_[0].group->map(0, *address); }), "no error");
  }

  const Collective collective_ = std::get<Collective>(GetParam());
  std::vector<Rank> ranks_ = make_ranks(std::get<Among>(GetParam()));
};

TEST_P(LateRank, MapsNoMemoryOfARankThatHasDoneAll) {
  end_the_other();
  ranks_[1].group->before_map = [] { ADD_FAILURE(); };
  EXPECT_EQ(test::error_of([&] { EXPECT_TRUE(ranks_[1].step_until_done()); }), "no error");
  check_result(ranks_[1], collective_);
}

// It has seen that something was left to do.
TEST_P(LateRank, MayFailToMapTheMemoryOfARankThatHasDoneAll) {
  bool mapped = false;
  ranks_[1].group->before_map = [&] {
    mapped = true;
    end_the_other();
  };
  EXPECT_EQ(test::error_of([&] { EXPECT_TRUE(ranks_[1].step_until_done()); }), "no error");
  EXPECT_TRUE(mapped);
  check_result(ranks_[1], collective_);
}

TEST_P(LateRank, TellsThatMemoryIsGoneInWhichSomethingIsLeftToDo) {
  ranks_[0].input.reset();
  ranks_[0].output.reset();
  EXPECT_TRUE(test::error_of([&] {
                (void)ranks_[1].step_until_done();
              }).starts_with(to_string(ErrorCode::OperationFailed)));
}

INSTANTIATE_TEST_SUITE_P(SharedMemory, LateRank,
                         testing::Combine(testing::Values(Among::Threads, Among::Processes),
                                          testing::Values(Collective{CollectiveKind::Allreduce},
                                                          Collective{CollectiveKind::Broadcast, 0},
                                                          Collective{CollectiveKind::Broadcast, 1},
                                                          Collective{CollectiveKind::Allgather},
                                                          Collective{CollectiveKind::Alltoall})),
                         [](const auto& tested) {
                           const Collective collective = std::get<Collective>(tested.param);
                           const bool threads = std::get<Among>(tested.param) == Among::Threads;
                           return core::concat(to_string(collective.kind), collective.root,
                                               threads ? "AmongThreads" : "AmongProcesses");
                         });

// The memory of rank 1 is private, so that pieces are assigned. The only one is rank 0's.
TEST(SharedMemory, ALateRankThatStagesMapsNoMemoryOfOthers) {
  constexpr int64_t kOnePiece = 4000;
  const Collective allreduce = {CollectiveKind::Allreduce};
  std::vector<Rank> ranks = make_ranks(Among::Processes);
  std::vector<std::byte> input(kBytes), output(kBytes);
  const auto keep = [](std::byte*) {};
  ranks[1].input = std::shared_ptr<std::byte>(input.data(), keep);
  ranks[1].output = std::shared_ptr<std::byte>(output.data(), keep);
  ranks[0].input = ranks[0].group->allocate(kBytes);
  ranks[0].output = ranks[0].group->allocate(kBytes);
  start(ranks[1], allreduce, kOnePiece);
  EXPECT_FALSE(ranks[1].step_until_done());  // it has copied the piece into its ring
  start(ranks[0], allreduce, kOnePiece);
  EXPECT_TRUE(ranks[0].step_until_done());
  ranks[0].give_all_back();
  ranks[1].group->before_map = [] { ADD_FAILURE(); };
  EXPECT_EQ(test::error_of([&] { EXPECT_TRUE(ranks[1].step_until_done()); }), "no error");
  check_result(ranks[1], allreduce, kOnePiece);
}

// A ring holds a piece for each rank: once all have filled theirs, each sums its piece.
TEST(SharedMemory, EachOfManyRanksThatStageSumsAtOnce) {
  constexpr int kRanks = 12;
  std::vector<Rank> ranks = make_ranks(Among::Threads, kRanks);
  const int64_t piece = PieceAllreduce::piece_bytes(int64_t{1} << 30, kRanks);
  const auto count = static_cast<size_t>(kRanks * piece) / sizeof(float);
  std::vector<std::vector<float>> values(kRanks, std::vector<float>(count, 1));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    core::Batch batch;
    batch.count = static_cast<int64_t>(count);
    batch.input = batch.output = reinterpret_cast<std::byte*>(values[rank].data());
    batch.piece_bytes = piece;
    ranks[rank].flight = ranks[rank].allreduce->start(std::move(batch));
  }
  for (Rank& rank : ranks) EXPECT_FALSE(rank.step_until_done());  // copies in
  std::vector<bool> done;
  for (Rank& rank : ranks) done.push_back(rank.step_until_done());  // sums
  EXPECT_TRUE(done.back());                                         // so all have summed
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_TRUE(done[rank] || ranks[rank].step_until_done());
  }
  for (const std::vector<float>& got : values) {
    EXPECT_EQ(got, std::vector<float>(count, kRanks));
  }
}

}  // namespace
}  // namespace horon::ops
