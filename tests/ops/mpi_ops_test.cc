// The collectives on MPI, against the contract of all ops.
#include "horon/ops/mpi/mpi_ops.h"

#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/ops/host/host_memory.h"
#include "horon/ops/mpi/mpi_allgather.h"
#include "horon/ops/mpi/mpi_allreduce.h"
#include "horon/ops/mpi/mpi_broadcast.h"
#include "horon/ops/mpi/mpi_exchange.h"
#include "horon/ops/mpi/mpi_pair.h"
#include "horon/ops/mpi/mpi_reducescatter.h"
#include "horon/tests/ops/contract_case.h"
#include "horon/tests/ops/mpi_world.h"
#include "horon/tests/support/error_of.h"

namespace horon::ops {
namespace {

std::shared_ptr<core::ScratchPool> host_scratch() {
  std::vector<std::unique_ptr<core::MemoryDomain>> domains;
  domains.push_back(std::make_unique<HostMemory>(nullptr));
  return std::make_shared<core::ScratchPool>(std::move(domains));
}

class MpiOps : public testing::Test {
 protected:
  void SetUp() override {
    // If one of several requests has failed, MPICH asks the error handler of MPI_COMM_WORLD.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_dup(MPI_COMM_WORLD, &communicator_);
    channel_ = std::make_shared<MpiChannel>(communicator_, host_scratch());
    // A small limit in place of MPI's, for counts above what MPI can count.
    narrow_channel_ = std::make_shared<MpiChannel>(communicator_, host_scratch(), 1000);
  }
  void TearDown() override { MPI_Comm_free(&communicator_); }

  const World world_ = mpi_world();
  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::shared_ptr<MpiChannel> channel_;
  std::shared_ptr<MpiChannel> narrow_channel_;
};

TEST_F(MpiOps, Allreduce) {
  MpiAllreduce op(channel_);
  check_allreduce(world_, op);
  check_same_bits(world_, op);
  check_nan(world_, op);
  check_scales(world_, op);
  check_many_in_flight(world_, op, 4);
  check_allreduce_refusals(op);
}

TEST_F(MpiOps, LongAllreduce) {
  MpiAllreduce op(channel_);
  check_long_allreduce(world_, op, 1300007);
}

TEST_F(MpiOps, SomeRanksInPlace) {
  MpiAllreduce op(channel_);
  check_mixed_places(world_, op);
  check_unwanted_outputs(world_, op);
}

TEST_F(MpiOps, ABatchInPlaceIsNotCopied) {
  const auto scratch = host_scratch();
  const auto channel = std::make_shared<MpiChannel>(communicator_, scratch);
  MpiAllreduce op(channel);
  const int64_t count = world_.size < 4 ? 100'003 : 10'007;
  std::mt19937_64 random(1);
  for (const bool in_place : {true, false}) {
    AllreduceRun run(world_, {.count = count, .in_place = in_place}, 0);
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    in_flight.push_back(op.start(run.batch()));
    drive(world_, std::move(in_flight), random);
    run.check();
    EXPECT_EQ(scratch->usage().bytes_peak, 0U) << (in_place ? "in place" : "not in place");
  }
}

// MPI adds the parts of a batch in an order that may depend on their length.
TEST_F(MpiOps, PartsOfARoundedSumOfSeveralRanksAreNotTheSame) {
  core::Batch like;
  const MpiAllreduce op(channel_);
  EXPECT_EQ(op.same_in_parts(like), world_.size <= 2);
  like.reduce_op = ReduceOp::Max;
  EXPECT_TRUE(op.same_in_parts(like));
  like.reduce_op = ReduceOp::Sum;
  like.dtype = DataType::Int32;
  EXPECT_TRUE(op.same_in_parts(like));
}

TEST_F(MpiOps, AllreduceInPieces) {
  MpiAllreduce op(narrow_channel_);
  check_long_allreduce(world_, op, 20011);
  check_scales(world_, op);
}

TEST_F(MpiOps, Broadcast) {
  MpiBroadcast op(channel_);
  check_broadcast(world_, op);
}

TEST_F(MpiOps, BroadcastInPieces) {
  MpiBroadcast op(narrow_channel_);
  check_broadcast(world_, op);
}

// The last two ranks, on the communicator of all ranks.
TEST_F(MpiOps, BroadcastAmongTheTwoOfAPair) {
  if (world_.size < 2) GTEST_SKIP() << "needs a second rank";
  const int me = world_.rank - (world_.size - 2);
  MPI_Comm apart = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, me < 0 ? 0 : 1, world_.rank, &apart);
  if (me >= 0) {
    World pair;
    pair.rank = me;
    pair.size = 2;
    pair.gather = [&](uint64_t mine) {
      std::vector<uint64_t> both(2);
      MPI_Allgather(&mine, 1, MPI_UINT64_T, both.data(), 1, MPI_UINT64_T, apart);
      return both;
    };
    for (const auto& channel : {channel_, narrow_channel_}) {
      MpiPair op(channel, me, world_.size - 1 - me);
      check_broadcast(pair, op);
    }
  }
  MPI_Comm_free(&apart);
}

TEST_F(MpiOps, Allgather) {
  MpiAllgather op(channel_);
  check_allgather(world_, op);
}

TEST_F(MpiOps, AllgatherInPieces) {
  MpiAllgather op(narrow_channel_);
  check_allgather(world_, op);
}

TEST_F(MpiOps, Reducescatter) {
  MpiReducescatter op(channel_);
  check_reducescatter(world_, op);
}

TEST_F(MpiOps, ReducescatterInPieces) {
  MpiReducescatter op(narrow_channel_);
  check_reducescatter(world_, op);
}

TEST_F(MpiOps, Exchanges) {
  for (const CollectiveKind kind :
       {CollectiveKind::Alltoall, CollectiveKind::Gather, CollectiveKind::Scatter}) {
    MpiExchange op(channel_, kind);
    check_exchange(world_, op, kind);
    MpiExchange in_pieces(narrow_channel_, kind);
    check_exchange(world_, in_pieces, kind);
  }
}

// An allreduce that first widens its input posts late. Collectives that start after it must not
// overtake it on one rank and not on another.
TEST_F(MpiOps, PostsInTheOrderOfStarts) {
  MpiAllreduce allreduce(channel_);
  MpiBroadcast broadcast(channel_);
  std::mt19937_64 random(static_cast<uint64_t>(world_.rank) + 5);
  for (int round = 0; round < 6; ++round) {
    AllreduceRun wide(world_, {.dtype = DataType::BFloat16, .count = 600001}, 1);
    AllreduceRun plain(world_, {.count = 1}, 2);
    int32_t word = world_.rank == 0 ? round : -1;
    core::Batch words;
    words.kind = CollectiveKind::Broadcast;
    words.dtype = DataType::Int32;
    words.count = 1;
    words.output = reinterpret_cast<std::byte*>(&word);
    words.input = words.output;
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    in_flight.push_back(allreduce.start(wide.batch()));
    in_flight.push_back(broadcast.start(words));
    in_flight.push_back(allreduce.start(plain.batch()));
    drive(world_, std::move(in_flight), random);
    wide.check();
    plain.check();
    ASSERT_EQ(word, round);
  }
}

TEST_F(MpiOps, GivingUpBeforePostingBreaksTheChannel) {
  MpiBroadcast broadcast(channel_);
  core::Batch batch;
  batch.kind = CollectiveKind::Broadcast;
  broadcast.start(batch).reset();
  const auto second = broadcast.start(batch);
  try {
    second->step();
    FAIL() << "must throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::OperationFailed);
  }
}

TEST_F(MpiOps, GivingUpWhatWaitsForItsTurnBreaksTheChannel) {
  MpiBroadcast broadcast(channel_);
  core::Batch batch;
  batch.kind = CollectiveKind::Broadcast;
  const auto first = broadcast.start(batch);
  auto second = broadcast.start(batch);
  EXPECT_EQ(second->step(), core::Progress::Polling);
  second.reset();
  EXPECT_THROW((void)first->step(), Error);
}

// MPI may write there until the collective ends.
TEST_F(MpiOps, ScratchOfWhatIsGivenUpInFlightIsNotUsedAgain) {
  MpiAllreduce allreduce(channel_);
  AllreduceRun given_up(world_, {.dtype = DataType::BFloat16, .count = 1000}, 1);
  auto flight = allreduce.start(given_up.batch());
  EXPECT_EQ(flight->step(), core::Progress::Advanced);  // it is posted
  flight.reset();
  const size_t held = channel_->scratch().usage().bytes;
  EXPECT_GT(held, 0U);
  AllreduceRun next(world_, {.dtype = DataType::BFloat16, .count = 1000}, 2);
  std::vector<std::unique_ptr<core::InFlight>> in_flight;
  in_flight.push_back(allreduce.start(next.batch()));
  EXPECT_EQ(channel_->scratch().usage().bytes, 2 * held);
  std::mt19937_64 random(1);
  drive(world_, std::move(in_flight), random);
  next.check();
}

// The last rank gets a message that is longer than it expects.
TEST_F(MpiOps, AnErrorOfARequestIsNamed) {
  if (world_.size < 2) GTEST_SKIP() << "needs a second rank";
  const int me = world_.rank - (world_.size - 2);
  if (me < 0) return;
  MpiPair op(channel_, me, world_.size - 1 - me);
  std::array<std::byte, 8> data = {};
  core::Batch batch;
  batch.kind = CollectiveKind::Broadcast;
  batch.dtype = DataType::UInt8;
  batch.count = me == 0 ? 8 : 4;
  batch.output = data.data();
  batch.input = batch.output;
  const auto flight = op.start(batch);
  const auto go = [&] {
    while (flight->step() != core::Progress::Done) {
    }
  };
  if (me == 0) return go();
  EXPECT_THAT(test::error_of(go), testing::HasSubstr("truncated"));
}

TEST_F(MpiOps, AllOfThem) {
  const auto ops = make_mpi_ops(&communicator_, host_scratch());
  std::vector<std::string_view> names;
  for (const auto& op : ops) names.push_back(op->name());
  EXPECT_EQ(names, (std::vector<std::string_view>{"mpi_allreduce", "mpi_broadcast", "mpi_allgather",
                                                  "mpi_reducescatter", "mpi_alltoall", "mpi_gather",
                                                  "mpi_scatter"}));
}

}  // namespace
}  // namespace horon::ops
