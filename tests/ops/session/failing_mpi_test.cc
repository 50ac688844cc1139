// MPI fails on one rank, or does not return, while a session or a process set is made. The test
// replaces MPI's functions (by MPI's own profiling interface) and counts what is called.
#include <atomic>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include "horon/core/base/wait_check.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/mpi_main.h"

namespace {

enum class Behaviour : int { Works, Fails, Blocks };
std::atomic<Behaviour> create_group{Behaviour::Works};
std::atomic<Behaviour> create_keyval{Behaviour::Works};
std::atomic<Behaviour> create_op{Behaviour::Works};
std::atomic<bool> job_ends_in_create_op{false};
std::atomic<int> meetings_in_create_op{0};  // barriers of all ranks, before it works
std::atomic<bool> signal_comes_in_create_op{false};
std::atomic<bool> signal_is_due{false};  // for the next wait that asks
std::atomic<bool> serialized{false};     // MPI says that threads may not call it at the same time
std::atomic<int> calls_begun{0};
std::atomic<int> calls_in_progress{0};
std::atomic<int> communicators_freed{0};

}  // namespace

extern "C" int MPI_Comm_create_group(MPI_Comm from, MPI_Group group, int tag, MPI_Comm* made) {
  ++calls_begun;
  if (create_group == Behaviour::Works) return PMPI_Comm_create_group(from, group, tag, made);
  if (create_group == Behaviour::Blocks) {
    ++calls_in_progress;
    calls_in_progress.notify_all();
    create_group.wait(Behaviour::Blocks);
    --calls_in_progress;
    calls_in_progress.notify_all();
  }
  return MPI_ERR_NO_MEM;
}

extern "C" int MPI_Comm_create_keyval(MPI_Comm_copy_attr_function* copy,
                                      MPI_Comm_delete_attr_function* remove, int* key,
                                      void* extra) {
  if (create_keyval == Behaviour::Fails) return MPI_ERR_NO_MEM;
  return PMPI_Comm_create_keyval(copy, remove, key, extra);
}

extern "C" int MPI_Op_create(MPI_User_function* function, int commutes, MPI_Op* made) {
  if (create_op == Behaviour::Fails) return MPI_ERR_NO_MEM;
  if (job_ends_in_create_op.exchange(false)) {
    horon::ops::runtime().fail(horon::Error(horon::ErrorCode::PeerDead, "rank 2 has died"));
  }
  for (; meetings_in_create_op > 0; --meetings_in_create_op) PMPI_Barrier(MPI_COMM_WORLD);
  if (signal_comes_in_create_op.exchange(false)) signal_is_due = true;
  return PMPI_Op_create(function, commutes, made);
}

extern "C" int MPI_Query_thread(int* level) {
  if (!serialized) return PMPI_Query_thread(level);
  *level = MPI_THREAD_SERIALIZED;
  return MPI_SUCCESS;
}

extern "C" int MPI_Comm_free(MPI_Comm* communicator) {
  ++communicators_freed;
  return PMPI_Comm_free(communicator);
}

namespace horon {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Ends calls that are still in MPI, before MPI ends.
void release_calls() {
  create_group = Behaviour::Works;
  create_group.notify_all();
  for (int left = calls_in_progress; left > 0; left = calls_in_progress) {
    calls_in_progress.wait(left);
  }
}

// All ranks give MPI up or none does; otherwise some would wait for the others when MPI ends.
void expect_that_nothing_is_freed() {
  communicators_freed = 0;
  shutdown();
  EXPECT_EQ(communicators_freed, 0);
  release_calls();
}

// As Python ends a wait for Ctrl-C.
void answer_signal() {
  if (!signal_is_due.exchange(false)) return;
  signal_is_due.notify_all();
  throw Error(ErrorCode::Timeout, "a signal has ended the wait");
}

// While this lives, the waits of this rank ask for signals, and one comes when ranks 1 and 2 both
// make a communicator, which does not return.
class SignalOnceMembersAreInMpi {
 public:
  // `then_fails`: rank 1's call fails when rank 0 has answered its signal.
  explicit SignalOnceMembersAreInMpi(int signalled, bool then_fails = false) {
    core::set_wait_check(&answer_signal);
    create_group = Behaviour::Blocks;
    thread_ = std::thread([signalled, then_fails] {
      if (test_rank() != 0) calls_in_progress.wait(0);
      MPI_Barrier(MPI_COMM_WORLD);
      if (test_rank() == signalled) signal_is_due = true;
      if (!then_fails) return;
      if (test_rank() == 0) signal_is_due.wait(true);
      MPI_Barrier(MPI_COMM_WORLD);
      if (test_rank() == 1) release_calls();
    });
  }
  ~SignalOnceMembersAreInMpi() {
    thread_.join();
    core::set_wait_check(nullptr);
    signal_is_due = false;
  }
  SignalOnceMembersAreInMpi(const SignalOnceMembersAreInMpi&) = delete;
  SignalOnceMembersAreInMpi& operator=(const SignalOnceMembersAreInMpi&) = delete;

 private:
  std::thread thread_;
};

void expect_that_a_job_works() {
  init_session();
  const ProcessSet set = add_process_set({1, 2});
  if (set.includes_me()) barrier(set);
  barrier();
  communicators_freed = 0;
  shutdown();
  EXPECT_GT(communicators_freed, 0);
}

// Before any other test: it is done once in a process.
TEST(FailingMpi, AFailedStartIsAnErrorOfAll) {
  if (test_rank() == 1) create_keyval = Behaviour::Fails;
  EXPECT_THAT(error_of([] { init_session(); }),
              AllOf(HasSubstr("MPI_Comm_create_keyval"), HasSubstr("(on rank 1)")));
  EXPECT_FALSE(is_initialized());
  create_keyval = Behaviour::Works;
  expect_that_a_job_works();
}

// Rank 2 is a member and rank 1 is the one that fails, so rank 2 waits for it for ever.
TEST(FailingMpi, OneMemberFailsWhereAnotherWaits) {
  init_session();
  barrier();
  create_group = test_rank() == 1 ? Behaviour::Fails : Behaviour::Blocks;
  EXPECT_THAT(error_of([] {
                (void)add_process_set({1, 2});
              }),
              AllOf(StartsWith("failed: add_process_set({1 and 2}): "),
                    HasSubstr("MPI_Comm_create_group"), HasSubstr("(on rank 1)")));
  barrier();  // the job goes on
  EXPECT_EQ(process_sets().size(), 1U);
  expect_that_nothing_is_freed();
  expect_that_a_job_works();
}

TEST(FailingMpi, AllMembersFail) {
  init_session();
  create_group = Behaviour::Fails;
  EXPECT_THAT(error_of([] { (void)add_process_set({1, 2}); }), HasSubstr("(on rank 1)"));
  create_group = Behaviour::Works;
  const ProcessSet set = add_process_set({1, 2});  // nobody waits, so MPI is in order
  if (set.includes_me()) barrier(set);
  communicators_freed = 0;
  shutdown();
  EXPECT_GT(communicators_freed, 0);
}

// An earlier call may still be inside MPI, and a new one could wait there for it for ever.
TEST(FailingMpi, MpiIsNotCalledAgainOnceItIsGivenUp) {
  init_session();
  barrier();
  create_group = test_rank() == 1 ? Behaviour::Fails : Behaviour::Blocks;
  EXPECT_THAT(error_of([] { (void)add_process_set({1, 2}); }), HasSubstr("(on rank 1)"));
  create_group = Behaviour::Fails;
  calls_begun = 0;
  EXPECT_THAT(error_of([] {
                (void)add_process_set({0, 2});
              }),
              HasSubstr("given up in MPI, so no more process sets can be made (on rank 0)"));
  if (test_rank() != 0) {
    EXPECT_THAT(error_of([] {
                  (void)add_process_set_among({1, 2}, 7);
                }),
                HasSubstr("given up in MPI, so no more process sets can be made (on rank 1)"));
  }
  EXPECT_EQ(calls_begun, 0);
  barrier();  // the job goes on
  expect_that_nothing_is_freed();
  expect_that_a_job_works();
}

// MPI tells calls apart by the set's number, and something of the first call may be left in MPI.
TEST(FailingMpi, TheNumberOfASetThatFailedIsNotUsedAgain) {
  init_session();
  if (test_rank() != 0) {
    const auto add = [](uint32_t number) { return add_process_set_among({1, 2}, number); };
    create_group = Behaviour::Fails;
    EXPECT_THAT(error_of([&] { (void)add(7); }), HasSubstr("(on rank 1)"));
    create_group = Behaviour::Works;
    EXPECT_THAT(error_of([&] { (void)add(7); }), HasSubstr("has used the number before"));
    barrier(add(8));  // nobody waits, so MPI is in order
  }
  shutdown();
}

// The ranks that are no members must hear of it, or they would wait for the others where MPI ends.
TEST(FailingMpi, MembersAloneThatGiveMpiUpEndTheJob) {
  init_session();
  barrier();
  if (test_rank() != 0) {
    create_group = test_rank() == 1 ? Behaviour::Fails : Behaviour::Blocks;
    EXPECT_THAT(error_of([] {
                  (void)add_process_set_among({1, 2}, 7);
                }),
                AllOf(StartsWith("failed: add_process_set_among({1 and 2}, 7): "),
                      HasSubstr("MPI_Comm_create_group"), HasSubstr("(on rank 1)")));
  }
  EXPECT_THAT(error_of([] { barrier(); }),
              AllOf(HasSubstr("add_process_set_among({1 and 2}, 7): MPI_Comm_create_group"),
                    HasSubstr("MPI was given up")));
  expect_that_nothing_is_freed();
  expect_that_a_job_works();
}

// The thread is in MPI as if it waited for a member that never comes.
TEST(FailingMpi, ShutdownWhileAThreadIsInMpiEndsTheJob) {
  init_session();
  barrier();
  std::thread adds;
  if (test_rank() != 0) {
    create_group = Behaviour::Blocks;
    adds = std::thread([] {
      EXPECT_THAT(error_of([] {
                    (void)add_process_set_among({1, 2}, 7);
                  }),
                  HasSubstr("shutdown()"));
    });
    calls_in_progress.wait(0);
  }
  MPI_Barrier(MPI_COMM_WORLD);  // both members are in MPI
  communicators_freed = 0;
  shutdown();
  EXPECT_EQ(communicators_freed, 0);
  if (adds.joinable()) adds.join();
  release_calls();
  expect_that_a_job_works();
}

// Rank 0 is no member, has not given MPI up, and would free communicators and end MPI alone.
TEST(FailingMpi, ASignalThatEndsTheWaitOfOneRankEndsTheJobWhereTheOthersAreInMpi) {
  init_session();
  barrier();
  {
    const SignalOnceMembersAreInMpi signal(0);
    const std::string error = error_of([] { (void)add_process_set({1, 2}); });
    EXPECT_THAT(error, HasSubstr(test_rank() == 0 ? "a signal has ended" : "rank 0")) << error;
    expect_that_nothing_is_freed();
  }
  expect_that_a_job_works();
}

// The same where the others agree on a failure, which rank 0 does not wait for any more.
TEST(FailingMpi, ARankThatDoesNotHearThatMpiIsGivenUpEndsTheJob) {
  init_session();
  barrier();
  {
    const SignalOnceMembersAreInMpi signal(0, /*then_fails=*/true);
    const std::string error = error_of([] { (void)add_process_set({1, 2}); });
    if (test_rank() == 0) {
      EXPECT_THAT(error, HasSubstr("a signal has ended"));
    }
    expect_that_nothing_is_freed();
  }
  expect_that_a_job_works();
}

TEST(FailingMpi, ASignalEndsTheWaitOfAMemberThatIsInMpi) {
  init_session({.set = {{"HORON_STALL_ABORT_S", "60"}}});
  barrier();
  {
    const SignalOnceMembersAreInMpi signal(1);
    EXPECT_THAT(error_of([] { (void)add_process_set({1, 2}); }), HasSubstr("a signal has ended"));
    expect_that_nothing_is_freed();
  }
  expect_that_a_job_works();
}

// The other member has its communicator, and frees it when it likes or never. The signal comes when
// both have theirs: an earlier one could end a wait before a message without which the other member
// does not come so far.
TEST(FailingMpi, ASetThatASignalInterruptsIsNotFreed) {
  init_session();
  barrier();
  communicators_freed = 0;
  const auto add = [] { (void)add_process_set_among({1, 2}, 7); };
  if (test_rank() == 0) {
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  if (test_rank() == 1) {
    core::set_wait_check(&answer_signal);
    meetings_in_create_op = 1;
    signal_comes_in_create_op = true;
    EXPECT_THAT(error_of(add), HasSubstr("a signal has ended"));
    core::set_wait_check(nullptr);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  if (test_rank() == 2) {
    meetings_in_create_op = 2;
    EXPECT_THAT(error_of(add), HasSubstr("rank 1"));
  }
  EXPECT_EQ(communicators_freed, 0);
  shutdown();
  expect_that_a_job_works();
}

TEST(FailingMpi, WaitingHasALimit) {
  init_session({.set = {{"HORON_STALL_WARN_S", "1"}, {"HORON_STALL_ABORT_S", "10"}}});
  barrier();
  create_group = Behaviour::Blocks;
  EXPECT_THAT(error_of([] {
                (void)add_process_set({0, 1, 2});
              }),
              AllOf(StartsWith("stall: add_process_set({0, 1 and 2}): MPI_Comm_create_group has "
                               "not returned on ranks"),
                    HasSubstr("0, 1 and 2 in 10 s"), HasSubstr("HORON_STALL_ABORT_S")));
  barrier();
  expect_that_nothing_is_freed();
  expect_that_a_job_works();
}

// A member may be dead, and the others would wait for it when they free the set.
TEST(FailingMpi, ASetThatTheEndOfTheJobInterruptsIsNotFreed) {
  init_session();
  barrier();
  communicators_freed = 0;
  job_ends_in_create_op = test_rank() == 2;
  EXPECT_THAT(error_of([] { (void)add_process_set({0, 1, 2}); }), HasSubstr("rank 2 has died"));
  EXPECT_EQ(communicators_freed, 0);
  expect_that_nothing_is_freed();
  expect_that_a_job_works();
}

TEST(FailingMpi, ASetThatOneMemberCantMakeIsNotFreedWhereOneThreadMayCallMpi) {
  serialized = true;
  init_session();
  barrier();
  communicators_freed = 0;
  if (test_rank() == 2) create_op = Behaviour::Fails;
  EXPECT_THAT(error_of([] {
                (void)add_process_set({0, 1, 2});
                barrier();
              }),
              HasSubstr("rank 2: process set 1 can't be made"));
  create_op = Behaviour::Works;
  shutdown();
  EXPECT_EQ(communicators_freed, 0);
  serialized = false;
  expect_that_a_job_works();
}

// The thread that steps the loop can't go on without MPI. It gives up when its silence would be
// taken for death, and the job ends with one error on all ranks.
TEST(FailingMpi, WaitingHasALimitWhereOneThreadMayCallMpi) {
  serialized = true;
  init_session({.set = {{"HORON_DEAD_AFTER_S", "6"}}});
  barrier();
  create_group = Behaviour::Blocks;
  EXPECT_THAT(
      error_of([] {
        (void)add_process_set({1, 2});
      }),
      testing::AnyOf(HasSubstr("process set 1 can't be made: MPI_Comm_create_group of ranks "
                               "1 and 2 has not returned in "),
                     StartsWith("peer dead: rank")));
  expect_that_nothing_is_freed();
  serialized = false;
  expect_that_a_job_works();
}

}  // namespace
}  // namespace horon
