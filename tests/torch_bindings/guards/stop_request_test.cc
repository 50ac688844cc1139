// All ranks stop behind the same step, whichever of them was asked to, and when.
#include "horon/torch_bindings/guards/stop_request.h"

#include <chrono>
#include <csignal>
#include <limits>
#include <thread>

#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/guards/rank_zero.h"

namespace horon::stop_request_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;

constexpr int kSteps = 8;
constexpr int kNever = -1;

volatile std::sig_atomic_t times_called = 0;
void count_call(int) { times_called = times_called + 1; }
void other_handler(int) {}

// What a signal does in this test, if nobody has taken it: it is counted.
class CountedSignal {
 public:
  explicit CountedSignal(int number) : number_(number), before_(std::signal(number, count_call)) {
    times_called = 0;
  }
  ~CountedSignal() { (void)std::signal(number_, before_); }
  CountedSignal(const CountedSignal&) = delete;
  CountedSignal& operator=(const CountedSignal&) = delete;

 private:
  const int number_;
  void (*const before_)(int);
};

auto handler_of(int number) {
  struct sigaction now = {};
  sigaction(number, nullptr, &now);
  return now.sa_handler;
}

// The step behind which this rank stops. `before_check` gets each step.
template <class BeforeCheck>
int last_step(StopRequest& stop, const BeforeCheck& before_check) {
  for (int step = 0; step < kSteps; ++step) {
    before_check(step);
    allreduce(at::ones({2}), {.name = "gradient"});  // where the others would wait
    if (stop.check()) return step;
  }
  return kNever;
}

int last_step(StopRequest& stop) {
  return last_step(stop, [](int) {});
}

TEST(StopRequest, ASignalOfOneRankStopsAllBehindTheSameStep) {
  const CountedSignal counted(SIGUSR1);
  for (int chosen = 0; chosen < size(); ++chosen) {
    for (int when = 0; when < 3; ++when) {
      StopRequest stop({.signals = {SIGTERM, SIGUSR1}});
      EXPECT_EQ(stop.reason(), "");
      EXPECT_EQ(last_step(stop,
                          [&](int step) {
                            if (rank() == chosen && step == when) std::raise(SIGUSR1);
                          }),
                when);
      EXPECT_EQ(stop.reason(), "signal 10 (SIGUSR1) on rank " + std::to_string(chosen));
      EXPECT_TRUE(stop.check());
    }
  }
  EXPECT_EQ(times_called, 0);
  StopRequest stop({.signals = {SIGUSR1}});
  EXPECT_EQ(last_step(stop), kNever);
}

TEST(StopRequest, OfSignalsAtDifferentTimesTheFirstOneCounts) {
  const CountedSignal counted(SIGUSR1);
  StopRequest stop({.signals = {SIGUSR1}});
  const int own = 2 + size() - rank();  // the last rank's comes first
  const int stopped = last_step(stop, [&](int step) {
    if (step == own) std::raise(SIGUSR1);
  });
  EXPECT_EQ(stopped, 3);
  EXPECT_EQ(stop.reason(), "signal 10 (SIGUSR1) on rank " + std::to_string(size() - 1));
  // That of the others is still on its way, and does no harm.
  if (rank() != size() - 1) std::raise(SIGUSR1);
  EXPECT_EQ(times_called, 0);
  EXPECT_TRUE(stop.check());
  EXPECT_EQ(stop.reason(), "signal 10 (SIGUSR1) on rank 0");
}

TEST(StopRequest, ASignalThatInsistsDoesWhatItDidBefore) {
  const CountedSignal counted(SIGUSR2);
  StopRequest stop({.signals = {SIGUSR2}});
  const bool chosen = rank() == 0;
  for (int i = 0; i < 3 && chosen; ++i) std::raise(SIGUSR2);
  EXPECT_EQ(times_called, 0);  // nobody has been told yet
  EXPECT_TRUE(stop.check());
  std::raise(SIGUSR2);
  EXPECT_EQ(times_called, chosen ? 1 : 0);
  std::raise(SIGUSR2);
  EXPECT_EQ(times_called, chosen ? 2 : 1);
  barrier();
}

TEST(StopRequest, GivesBackTheHandlersThatWereThere) {
  const CountedSignal counted(SIGUSR1);
  const auto term = handler_of(SIGTERM);
  {
    const StopRequest stop({.signals = {SIGUSR1, SIGTERM}});
    EXPECT_NE(handler_of(SIGUSR1), count_call);
    EXPECT_NE(handler_of(SIGTERM), term);
  }
  EXPECT_EQ(handler_of(SIGUSR1), count_call);
  EXPECT_EQ(handler_of(SIGTERM), term);
  {
    const StopRequest stop({.signals = {SIGUSR1}});
    (void)std::signal(SIGUSR1, other_handler);
  }
  EXPECT_EQ(handler_of(SIGUSR1), other_handler);  // it is not ours
}

TEST(StopRequest, AfterSomeTime) {
  const bool last = rank() == size() - 1;
  StopRequest at_once({.after_seconds = last ? 0.0 : 3600});
  EXPECT_EQ(last_step(at_once), 0);
  EXPECT_EQ(at_once.reason(), "the time limit of 0 s");
  StopRequest never({.after_seconds = std::numeric_limits<double>::infinity()});
  EXPECT_EQ(last_step(never), kNever);

  const auto began = std::chrono::steady_clock::now();
  barrier();
  StopRequest soon({.after_seconds = 0.0625});
  int calls = 1;
  while (!soon.check()) ++calls;
  EXPECT_THAT(allgather_object(calls), Each(calls));
  EXPECT_THAT(allgather_object(soon.reason()), Each("the time limit of 0.0625 s"));
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::microseconds(62500));
}

TEST(StopRequest, ByTheProgramItself) {
  StopRequest stop;
  const int stopped = last_step(stop, [&](int step) {
    if (rank() == 0 && step == 2) std::thread([&] { stop.request(); }).join();
  });
  EXPECT_EQ(stopped, 2);
  EXPECT_EQ(stop.reason(), "request() on rank 0");
}

TEST(StopRequest, ASignalIsToldBeforeARequestAndThatBeforeTheTime) {
  StopRequest stop({.signals = {SIGUSR1}, .after_seconds = 0});
  EXPECT_TRUE(stop.check());
  EXPECT_EQ(stop.reason(), "the time limit of 0 s");
  if (rank() == size() - 1) stop.request();
  EXPECT_TRUE(stop.check());
  EXPECT_EQ(stop.reason(), "request() on rank " + std::to_string(size() - 1));
  std::raise(SIGUSR1);
  EXPECT_TRUE(stop.check());
  EXPECT_EQ(stop.reason(), "signal 10 (SIGUSR1) on rank 0");
}

TEST(StopRequest, AsksAtTheFirstOfEachNCalls) {
  StopRequest stop({.every = 3});
  const int stopped = last_step(stop, [&](int step) {
    if (rank() == size() - 1 && step == 1) stop.request();
  });
  EXPECT_EQ(stopped, 3);

  StopRequest other({.every = 3});
  for (int call = 0; call < 7; ++call) {
    if (call % 3 == 0) {
      // A call that fails does not count.
      const RankZeroScope scope;
      EXPECT_THAT(
          error_of([&] { other.check(); }),
          StartsWith("invalid argument: \"stop_request\": it was called in code that rank 0"));
    }
    if (call % 3 == 0) {
      EXPECT_FALSE(other.check());
    } else {
      const RankZeroScope scope;
      EXPECT_FALSE(other.check());  // asks nobody
    }
  }
}

TEST(StopRequest, AnotherEveryIsAnErrorOfAllRanks) {
  if (size() == 1) return;
  StopRequest stop({.name = "time", .every = rank() == 1 ? 5 : 2});
  EXPECT_EQ(error_of([&] { stop.check(); }),
            "mismatch: \"time\": `every` is 5 on rank 1 and 2 on rank 0, so they would not "
            "ask at the same steps. Give all ranks the same");
}

TEST(StopRequest, TheLowestRankLogsTheReasonOnce) {
  StopRequest stop;
  if (rank() == size() - 1) stop.request();
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(stop.check());
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            rank() == 0 ? "horon [0] info: the ranks stop together: request() on rank " +
                              std::to_string(size() - 1) + "\n"
                        : "");
}

TEST(StopRequest, WrongOptionsAreRefused) {
  const CountedSignal counted(SIGUSR1);
  const auto error = [](StopRequestOptions options) {
    return error_of([&] { const StopRequest stop(std::move(options)); });
  };
  const std::string kind = "invalid argument: stop request: ";
  EXPECT_EQ(error({.every = 0}), kind + "every is 0; give 1 or more");
  EXPECT_EQ(error({.after_seconds = -1}), kind + "after_seconds is -1; give 0 or more");
  EXPECT_THAT(error({.after_seconds = std::numeric_limits<double>::quiet_NaN()}),
              HasSubstr("give 0 or more"));
  EXPECT_THAT(error({.name = ""}), HasSubstr("the name is empty"));
  EXPECT_EQ(error({.signals = {0}}), kind + "there is no signal 0");
  EXPECT_EQ(error({.signals = {-1}}), kind + "there is no signal -1");
  EXPECT_EQ(error({.signals = {NSIG}}), kind + "there is no signal " + std::to_string(NSIG));
  // The signals that it had taken before are given back.
  EXPECT_EQ(error({.signals = {SIGUSR1, SIGKILL}}),
            kind + "signal 9 (SIGKILL) can't be caught: Invalid argument");
  EXPECT_THAT(error({.signals = {SIGSTOP}}), HasSubstr("signal 19 (SIGSTOP) can't be caught"));
  EXPECT_EQ(error({.signals = {SIGSEGV}}), kind + "no program can go on after signal 11 (SIGSEGV)");
  EXPECT_THAT(error({.signals = {SIGUSR1, SIGUSR1}}), HasSubstr("`signals` names it twice"));
  EXPECT_EQ(handler_of(SIGUSR1), count_call);
}

TEST(StopRequest, ASignalBelongsToOneAtATime) {
  const CountedSignal counted(SIGUSR1);
  StopRequest other({.signals = {SIGUSR2}});
  {
    StopRequest stop({.signals = {SIGUSR1}});
    EXPECT_EQ(error_of([] {
                const StopRequest second({.signals = {SIGTERM, SIGUSR1}});
              }),
              "invalid argument: stop request: signal 10 (SIGUSR1) is taken: another "
              "StopRequest has it, or `signals` names it twice. Give it to one StopRequest, once");
    if (rank() == 0) std::raise(SIGUSR1);
    EXPECT_FALSE(other.check());
    EXPECT_TRUE(stop.check());
  }
  std::raise(SIGUSR1);
  EXPECT_EQ(times_called, 1);
  StopRequest stop({.signals = {SIGTERM, SIGUSR1}});
  EXPECT_FALSE(stop.check());
  if (rank() == 0) std::raise(SIGUSR2);
  EXPECT_TRUE(other.check());
}

TEST(StopRequest, InAProcessSet) {
  const int last = size() - 1;
  const ProcessSet set = add_process_set(last == 0 ? std::vector{0} : std::vector{0, last});
  StopRequest stop({.process_set = set});
  if (set.includes_me()) {
    EXPECT_FALSE(stop.check());
    if (rank() == last) stop.request();
    EXPECT_TRUE(stop.check());
    EXPECT_EQ(stop.reason(), "request() on rank " + std::to_string(last));
  } else {
    stop.request();
    EXPECT_THAT(error_of([&] { stop.check(); }), StartsWith("invalid argument: "));
  }
  barrier();
  remove_process_set(set);
}

TEST(StopRequest, RanksThatComeBackFromJoinLearnWhatTheOthersKnow) {
  StopRequest stop({.every = 2});
  EXPECT_FALSE(stop.check());
  if (rank() != 0) {
    stop.request();
    EXPECT_FALSE(stop.check());
    EXPECT_TRUE(stop.check());  // without rank 0
    EXPECT_EQ(stop.reason(), "request() on rank 1");
    for (int i = 0; i < rank(); ++i) EXPECT_TRUE(stop.check());
  }
  join();
  EXPECT_EQ(stop.check(), size() > 1);
  EXPECT_EQ(stop.reason(), size() > 1 ? "request() on rank 1" : "");
}

TEST(StopRequest, WorksInInferenceModeAndInOneSessionAfterTheOther) {
  const CountedSignal counted(SIGUSR1);
  StopRequest stop({.signals = {SIGUSR1}, .every = 2});
  {
    const c10::InferenceMode inference;
    EXPECT_FALSE(stop.check());
  }
  shutdown();
  EXPECT_THAT(error_of([&] { stop.check(); }), StartsWith("not initialized: "));
  std::raise(SIGUSR1);
  init();
  EXPECT_TRUE(stop.check());
  EXPECT_EQ(times_called, 0);
}

}  // namespace
}  // namespace horon::stop_request_test
