#include "horon/core/bootstrap/mpi_session.h"

#include <cstring>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/bootstrap/mpi_error.h"
#include "horon/tests/support/mpi_main.h"

namespace horon::core {
namespace {

using testing::HasSubstr;

std::string config_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Config);
    return error.what();
  }
  return "no error";
}

TEST(MpiSession, LeavesMpiToTheCallerWhoBeganIt) {
  for (int round = 0; round < 3; ++round) {
    const MpiSession session;
    EXPECT_FALSE(session.owns_mpi());
    EXPECT_EQ(session.thread_level(), "multiple");
  }
  int finalized = 1;
  MPI_Finalized(&finalized);
  EXPECT_EQ(finalized, 0);
}

TEST(MpiSession, KnowsWhereItStands) {
  const MpiSession session;
  const Topology& topology = session.topology();
  EXPECT_EQ(topology.rank, test_rank());
  EXPECT_EQ(topology.size, test_size());
  EXPECT_EQ(topology.local_rank, test_rank());  // mpirun_test starts all ranks on this machine
  EXPECT_EQ(topology.local_size, test_size());
  EXPECT_EQ(topology.cross_rank, 0);
  EXPECT_EQ(topology.cross_size, 1);
  EXPECT_TRUE(topology.one_host());
  EXPECT_EQ(topology.host_of, std::vector<int>(static_cast<size_t>(test_size()), 0));
  std::vector<int> all(static_cast<size_t>(test_size()));
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(topology.local_ranks, all);
}

TEST(MpiSession, TakesACommunicatorOfTheCaller) {
  // Half of the ranks, in reverse order.
  MPI_Comm half = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, test_rank() % 2, -test_rank(), &half), "split");
  int rank = -1;
  MPI_Comm_rank(half, &rank);
  {
    const MpiSession session(&half);
    EXPECT_EQ(session.topology().rank, rank);
    EXPECT_EQ(session.topology().size, (test_size() + 1 - test_rank() % 2) / 2);
    EXPECT_EQ(session.topology().local_rank, rank);
    MPI_Comm_free(&half);  // the session has its own
    session.require_same("nothing", "");
  }
}

TEST(MpiSession, GathersTextsOfAnyLength) {
  const MpiSession session;
  const auto text_of = [](int rank) { return std::string(static_cast<size_t>(rank * rank), 'a'); };
  const auto texts = session.gather_text(text_of(test_rank()));
  ASSERT_EQ(texts.size(), static_cast<size_t>(test_size()));
  for (int rank = 0; rank < test_size(); ++rank) {
    EXPECT_EQ(texts[static_cast<size_t>(rank)], text_of(rank));
  }
}

TEST(MpiSession, ExchangesBlocksOfTheHost) {
  const MpiSession session;
  const int mine = 100 + test_rank();
  for (const auto& all : {session.host_exchange()(std::as_bytes(std::span(&mine, 1))),
                          session.gather(std::as_bytes(std::span(&mine, 1)))}) {
    ASSERT_EQ(all.size(), sizeof(int) * static_cast<size_t>(test_size()));
    for (int rank = 0; rank < test_size(); ++rank) {
      int value = 0;
      std::memcpy(&value, all.data() + sizeof(int) * static_cast<size_t>(rank), sizeof value);
      EXPECT_EQ(value, 100 + rank);
    }
  }
}

TEST(MpiSession, NamesTheFirstRankThatDiffers) {
  const MpiSession session;
  session.require_same("version", "0.1.0");
  session.require_same("version", "");
  for (int odd_one = 1; odd_one < test_size(); ++odd_one) {
    const bool differs = test_rank() >= odd_one;
    const std::string text =
        differs ? concat("a=1\nb=", test_rank(), "\nc=3") : std::string("a=1\nb=0\nc=3");
    EXPECT_EQ(config_error([&] { session.require_same("configuration", text); }),
              concat("configuration differs between ranks: rank 0 has 'b=0', rank ", odd_one,
                     " has 'b=", odd_one, "'"));
  }
  if (test_size() == 1) return;
  // One text ends where the other goes on.
  const std::string longer = test_rank() == 1 ? "a\nb" : "a";
  EXPECT_EQ(config_error([&] { session.require_same("list", longer); }),
            "list differs between ranks: rank 0 has '', rank 1 has 'b'");
}

TEST(MpiSession, NamesTheLibrary) { EXPECT_THAT(MpiSession::library_version(), HasSubstr("MPI")); }

TEST(MpiError, CarriesMpisOwnWords) {
  const MpiSession session;
  check_mpi(MPI_SUCCESS, "MPI_Send");
  const int value = 0;
  const int code = MPI_Send(&value, 1, MPI_INT, session.topology().size, 0, session.communicator());
  ASSERT_NE(code, MPI_SUCCESS);  // returned, not fatal
  try {
    check_mpi(code, "MPI_Send");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::OperationFailed);
    EXPECT_THAT(error.what(), HasSubstr("MPI_Send: "));
    EXPECT_THAT(error.what(), HasSubstr("rank"));
  }
}

TEST(MpiSession, LeavesCommunicatorsOfABrokenJobAlone) {
  MPI_Comm kept = MPI_COMM_NULL;
  {
    MpiSession session;
    kept = session.communicator();
    session.abandon();
    EXPECT_TRUE(session.abandoned());
  }
  int size = 0;
  EXPECT_EQ(MPI_Comm_size(kept, &size), MPI_SUCCESS);
  EXPECT_EQ(size, test_size());
  MPI_Comm_free(&kept);
}

}  // namespace
}  // namespace horon::core
