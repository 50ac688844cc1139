// What one rank's failure means for the other ranks: each gets the cause at once, whatever failed
// and whatever the limits for silent ranks are.
#include <atomic>
#include <barrier>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/core/runtime/faulty_transport.h"
#include "horon/tests/core/runtime/known_death.h"
#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using namespace test_world;
using testing::AllOf;
using testing::HasSubstr;

void expect_cause_everywhere(const std::function<void()>& thrown, const std::string& text) {
  SCOPED_TRACE(text);
  std::atomic<bool> broken{false};
  const auto fault = [&](FaultyTransport::Call call, int) {
    if (broken && call == FaultyTransport::Call::Receive) thrown();
  };
  World world(3, {}, no_limits(), transport_of(1, fault));
  std::barrier<> all_is_well(3);
  world.each([&](Runtime& runtime, int rank) {
    EXPECT_EQ(error_of_submit(runtime, "before"), "");
    all_is_well.arrive_and_wait();
    if (rank == 1) broken = true;
    const std::string error = error_of_submit(runtime, rank == 1 ? "mine" : "theirs");
    EXPECT_THAT(error, AllOf(HasSubstr("rank 1"), HasSubstr(text)));
  });
}

TEST(RuntimeFailures, ATransportThatFailsOnOneRankIsTheErrorOfAll) {
  expect_cause_everywhere([] { throw Error(ErrorCode::OperationFailed, "the wire is cut"); },
                          "the wire is cut");
}

TEST(RuntimeFailures, AnyExceptionOfTheRuntimeThreadIsTheErrorOfAll) {
  expect_cause_everywhere([] { throw std::bad_alloc(); }, "memory");
  expect_cause_everywhere([] { throw std::runtime_error("a bug in a library"); },
                          "a bug in a library");
  expect_cause_everywhere([] { throw 42; }, "an exception that is no std::exception");
}

// Rank 0 gets the cause from rank 2.
TEST(RuntimeFailures, APeerThatCantBeReachedHearsTheCauseFromTheOthers) {
  std::atomic<bool> broken{false};
  const auto fault = [&](FaultyTransport::Call, int to) {
    if (broken && to == 0) throw Error(ErrorCode::OperationFailed, "rank 0 is out of reach");
  };
  World world(3, {}, no_limits(), transport_of(1, fault));
  std::barrier<> all_is_well(3);
  world.each([&](Runtime& runtime, int rank) {
    EXPECT_EQ(error_of_submit(runtime, "before"), "");
    all_is_well.arrive_and_wait();
    if (rank == 1) broken = true;
    EXPECT_THAT(error_of_submit(runtime, "after"), HasSubstr("rank 0 is out of reach"));
  });
}

// Rank 0 can't send to rank 1. Rank 2 still gets rank 0's farewell, and rank 0 waits for that of
// rank 2.
TEST(RuntimeFailures, AFarewellReachesThoseThatCanBeReached) {
  using namespace std::chrono_literals;
  std::atomic<bool> broken{false};
  const auto fault = [&](FaultyTransport::Call, int to) {
    if (broken && to == 1) throw Error(ErrorCode::OperationFailed, "rank 1 is out of reach");
  };
  World world(3, {}, no_limits(), transport_of(0, fault));
  std::barrier<> all_know(3);
  std::atomic<bool> last_leaves{false};
  world.each([&](Runtime& runtime, int rank) {
    if (rank == 0) runtime.fail(Error(ErrorCode::OperationFailed, "enough"));
    EXPECT_THAT(error_of_submit(runtime, "x"), HasSubstr("enough"));
    all_know.arrive_and_wait();
    broken = true;
    if (rank == 2) std::this_thread::sleep_for(200ms);
    if (rank == 2) last_leaves = true;
    const auto begin = std::chrono::steady_clock::now();
    (void)runtime.shutdown(kLongEnough, rank == 1 ? 100ms : 300s);
    if (rank == 1) return;  // it hears nothing of rank 0
    EXPECT_TRUE(last_leaves);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 100s);
  });
}

TEST(RuntimeFailures, NothingIsUnderWayBehindTheEnd) {
  World world(2, {.op_polls = 1'000'000'000});
  std::barrier<> both_see_it(2);
  world.each([&](Runtime& runtime, int) {
    const auto x = std::make_shared<Tensor>(tensor({1}));
    Submission mine = in_set(kWorldSet, "x", *x);
    mine.keep_alive = x;
    const auto handle = runtime.submit(std::move(mine));
    while (runtime.statistics().collectives_in_flight == 0) std::this_thread::yield();
    both_see_it.arrive_and_wait();
    runtime.fail(Error(ErrorCode::OperationFailed, "enough"));
    EXPECT_THAT(error_of(*handle), HasSubstr("enough"));
    (void)runtime.shutdown(kLongEnough);
    EXPECT_EQ(runtime.statistics().collectives_in_flight, 0U);
    EXPECT_EQ(runtime.statistics().bytes_in_flight, 0U);
  });
}

// The collectives of a set without the dead rank keep the others so busy that they never sleep for
// long.
TEST(RuntimeFailures, ARankThatDiesIsNamedThoughTheOthersAreBusy) {
  Dead dead{.rank = 2};
  World world(3, {}, no_limits(), hooks_of(dead));
  std::barrier<> all_is_under_way(3);
  world.each([&](Runtime& runtime, int rank) {
    runtime.add_set(1, {0, 1});
    EXPECT_EQ(error_of_submit(runtime, "before"), "");
    if (rank == 2) {
      all_is_under_way.arrive_and_wait();
      dead.known = true;
      while (runtime.fatal_error() == nullptr) std::this_thread::sleep_for(1ms);
      return;
    }
    const auto x = std::make_shared<Tensor>(tensor({1}));
    Submission of_all = submission("of all", *x);
    of_all.keep_alive = x;
    const auto handle = runtime.submit(std::move(of_all));
    all_is_under_way.arrive_and_wait();
    const auto limit = std::chrono::steady_clock::now() + kLongEnough;
    while (runtime.fatal_error() == nullptr && std::chrono::steady_clock::now() < limit) {
      const auto y = std::make_shared<Tensor>(tensor({1}));
      Submission of_two = submission("of two", *y);
      of_two.set = 1;
      of_two.keep_alive = y;
      try {
        (void)runtime.run(std::move(of_two));
      } catch (const Error&) {  // the job has ended meanwhile
      }
    }
    ASSERT_NE(runtime.fatal_error(), nullptr) << "nobody has looked in 20 s";
    EXPECT_EQ(runtime.fatal_error()->code(), ErrorCode::PeerDead);
    EXPECT_THAT(error_of(*handle), HasSubstr("rank 2 (pid 4711) has died"));
  });
}

// It may have ended properly, and its last message may still be on its way.
TEST(RuntimeFailures, ARankThatIsGoneWhileNothingIsUnderWayIsNotDeadAtOnce) {
  Dead dead{.rank = 1};
  World world(2, {}, no_limits(), hooks_of(dead));
  std::barrier<> all_rest(2);
  world.each([&](Runtime& runtime, int rank) {
    EXPECT_EQ(error_of_submit(runtime, "x"), "");
    all_rest.arrive_and_wait();
    if (rank == 1) {
      dead.known = true;
      std::this_thread::sleep_for(150ms);  // rank 0 looks every 100 ms
    }
    EXPECT_EQ(runtime.shutdown(kLongEnough), "");
    EXPECT_EQ(runtime.fatal_error(), nullptr);
  });
}

TEST(RuntimeFailures, AnErrorOfSessionCodeEndsTheJobOnAllRanks) {
  World world(3, {}, no_limits());
  world.each([](Runtime& runtime, int rank) {
    if (rank == 1) runtime.fail(Error(ErrorCode::OperationFailed, "the library is gone"));
    EXPECT_THAT(error_of_submit(runtime, "x"), HasSubstr("the library is gone"));
  });
}

TEST(RuntimeFailures, ARankThatLeavesAtItsLimitTellsTheOthersWhy) {
  World world(3, {}, no_limits());
  world.each([](Runtime& runtime, int rank) {
    if (rank == 1) {
      const auto x = std::make_shared<Tensor>(tensor({1}));
      Submission mine = submission("the others have it not", *x);
      mine.keep_alive = x;
      const auto handle = runtime.submit(std::move(mine));
      EXPECT_THAT(runtime.shutdown(50ms), HasSubstr("not all that was submitted has ended"));
      return;
    }
    while (runtime.fatal_error() == nullptr) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(runtime.fatal_error()->code(), ErrorCode::Stall);
    EXPECT_THAT(runtime.fatal_error()->what(),
                AllOf(HasSubstr("rank 1"), HasSubstr("not all that was submitted has ended")));
  });
}

// The session's steps around it are not needed here: each call waits for its answer.
TEST(RuntimeFailures, ASetThatIsBeingRemovedEndsWithTheJob) {
  World world(2, {.fail_op_at_sequence = 1});
  world.each([](Runtime& runtime, int rank) {
    runtime.add_set(1, {0, 1});
    EXPECT_EQ(error_of_submit(runtime, "both have the set"), "");
    if (rank == 0) {
      const auto x = std::make_shared<Tensor>(tensor({1}));
      Submission mine = submission("fails", *x);
      mine.keep_alive = x;
      const auto handle = runtime.submit(std::move(mine));
      EXPECT_THROW(runtime.remove_set(1), Error);
      EXPECT_THAT(error_of(*handle), HasSubstr("fake network is down"));
      return;
    }
    // Once rank 0 has left the set, the removal has begun.
    Tensor in_set = tensor({1});
    Submission asks = submission("has rank 0 left?", in_set);
    asks.set = 1;
    EXPECT_THAT(error_of(*runtime.submit(std::move(asks))),
                HasSubstr("rank 0 has left the process set"));
    EXPECT_THAT(error_of_submit(runtime, "fails"), HasSubstr("fake network is down"));
  });
}

TEST(RuntimeFailures, ASetThatCantBeMadeForWantOfMemoryEndsTheJobByName) {
  Hooks hooks;
  hooks.before_set = [](int rank) {
    if (rank == 1) throw std::bad_alloc();
  };
  World world(2, {}, no_limits(), hooks);
  world.each([](Runtime& runtime, int rank) {
    try {
      runtime.add_set(1, {0, 1});
      EXPECT_EQ(rank, 0);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("memory"));
    }
    EXPECT_THAT(error_of_submit(runtime, "x"), HasSubstr("memory"));
  });
}

// `allocate` allocates this rank's result of "rows".
Submission gather(Tensor& rows, AllocateOutput allocate) {
  Submission out = submission("rows", rows);
  out.memory.front().output = nullptr;
  out.allocate_output = std::move(allocate);
  return out;
}

TEST(RuntimeFailures, AResultThatCantBeAllocatedIsAnErrorOfThatRankAlone) {
  for (const int parts : {1, 2}) {
    SCOPED_TRACE(parts);
    World world(2);
    world.each([&](Runtime& runtime, int rank) {
      Tensor rows = tensor({1.0F + static_cast<float>(rank), 7}, CollectiveKind::Allgather);
      Submission mine = gather(rows, nullptr);
      if (parts == 2) {
        rows.spec->parts = {{"a", {1}}, {"b", {1}}};
        auto* data = reinterpret_cast<std::byte*>(rows.data.data());
        mine.memory = {{data, nullptr, 1}, {data + sizeof(float), nullptr, 1}};
      }
      std::vector<std::vector<float>> out(2);
      mine.allocate_output = [&](size_t part, int64_t elements, MemoryQueue&) {
        if (rank == 1 && part + 1 == static_cast<size_t>(parts)) throw std::bad_alloc();
        out[part].resize(static_cast<size_t>(elements));
        return reinterpret_cast<std::byte*>(out[part].data());
      };
      const std::string error = error_of(*runtime.submit(std::move(mine)));
      if (rank == 1) {
        EXPECT_THAT(error, AllOf(HasSubstr("\"rows\""), HasSubstr("rank 1"), HasSubstr("memory")));
      } else {
        EXPECT_EQ(error, "");
        EXPECT_EQ(out[0].front(), 1);
        EXPECT_EQ(out[static_cast<size_t>(parts) - 1].back(), 7);
      }
      EXPECT_EQ(error_of_submit(runtime, "the job goes on"), "");
    });
  }
}

TEST(RuntimeFailures, SignalsAreNotForTheBackgroundThread) {
  World world(1);
  world.each([](Runtime& runtime, int) {
    Tensor rows = tensor({1}, CollectiveKind::Allgather);
    float out = 0;
    sigset_t blocked;
    sigemptyset(&blocked);
    const auto handle = runtime.submit(gather(rows, [&](size_t, int64_t, MemoryQueue&) {
      pthread_sigmask(SIG_SETMASK, nullptr, &blocked);  // the background thread's mask
      return reinterpret_cast<std::byte*>(&out);
    }));
    while (!handle->finished()) std::this_thread::yield();  // a wait would step the loop itself
    EXPECT_EQ(error_of(*handle), "");
    for (const int signal : {SIGPROF, SIGALRM, SIGINT, SIGTERM, SIGCHLD, SIGUSR1}) {
      EXPECT_EQ(sigismember(&blocked, signal), 1) << signal;
    }
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
      EXPECT_EQ(sigismember(&blocked, signal), 0) << signal << " is this thread's own fault";
    }
  });
}

}  // namespace
}  // namespace horon::core
