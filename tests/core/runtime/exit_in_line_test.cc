// exit() in a signal handler, on a thread that waits for the loop or hands it a call. Not for
// ThreadSanitizer, which stops a signal handler that allocates memory.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/tests/core/runtime/forwarding_transport.h"
#include "horon/tests/core/runtime/runtime_world.h"
#include "horon/tests/support/asleep.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using namespace test_world;

// What the process would still have at its end: a runtime that a thread has left from within is
// never destroyed.
struct Job {
  World world = World(1, {}, no_limits());
  // On a device a handle finishes before its collective, which uses these until its end.
  Tensor rows = tensor({1}, CollectiveKind::Allgather);
  float gathered = 0;
  Tensor in_line = tensor({1});
  std::atomic<bool> in_turn{false};
  std::atomic<bool> turn_may_end{false};
  std::atomic<Runtime*> runtime{nullptr};
  std::atomic<bool> is_leaving{false};
  std::atomic<bool> has_left{false};
  std::string report;
};

Job& job() {
  static Job& one = *new Job;
  return one;
}

// Calls shutdown(), as exit() does.
void leave(int /*signal*/) {
  job().is_leaving = true;
  job().report = job().runtime.load()->shutdown(1s);
  job().has_left = true;
}

// From here on the background thread is in one turn of the loop, until the test lets it go.
std::shared_ptr<HandleState> begin_long_turn(Runtime& runtime) {
  Submission gather = submission("rows", job().rows);
  gather.memory.front().output = nullptr;
  gather.allocate_output = [](size_t, int64_t, MemoryQueue&) {
    job().in_turn = true;
    while (!job().turn_may_end) std::this_thread::sleep_for(1ms);
    return reinterpret_cast<std::byte*>(&job().gathered);
  };
  const auto handle = runtime.submit(std::move(gather));
  while (!job().in_turn) std::this_thread::sleep_for(1ms);
  return handle;
}

bool comes_true(const std::atomic<bool>& condition) {
  const auto limit = std::chrono::steady_clock::now() + kLongEnough;
  while (!condition && std::chrono::steady_clock::now() < limit) std::this_thread::sleep_for(1ms);
  return condition;
}

// The background thread gives way to a waiting thread until that thread has been in the loop.
TEST(ExitInLine, DoesNotWaitForItsOwnThread) {
  struct sigaction handler {};
  struct sigaction before {};
  handler.sa_handler = leave;
  sigaction(SIGUSR1, &handler, &before);
  job().world.each([](Runtime& runtime, int) {
    job().runtime = &runtime;
    const auto in_background = begin_long_turn(runtime);
    std::atomic<pid_t> in_line{0};
    std::thread waiting([&] {
      const auto handle = runtime.submit(submission("x", job().in_line));
      in_line = gettid();
      EXPECT_TRUE(handle->wait(60s));
    });
    while (in_line == 0 || !asleep(in_line)) std::this_thread::sleep_for(1ms);
    pthread_kill(waiting.native_handle(), SIGUSR1);
    while (!job().is_leaving) std::this_thread::sleep_for(1ms);
    job().turn_may_end = true;
    if (!comes_true(job().has_left)) {
      ADD_FAILURE() << "shutdown() does not return";
      std::abort();  // the thread that waits has the stack of this test
    }
    EXPECT_EQ(job().report, "exit() was called while this thread was in a collective");
    EXPECT_TRUE(runtime.left_from_within());
    waiting.join();  // this handler has returned, and so the collectives go on
    EXPECT_EQ(error_of(*in_background), "");
  });
  sigaction(SIGUSR1, &before, nullptr);
}

// A signal comes most often in a system call: here it comes in the ring of the doorbell by
// submit().
class SignalInRing final : public ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  Doorbell& doorbell() noexcept override {
    if (std::exchange(is_due, false)) ::raise(SIGUSR1);
    return ForwardingTransport::doorbell();
  }
  static thread_local bool is_due;
};

thread_local bool SignalInRing::is_due = false;

struct JobOfRing {
  JobOfRing() {
    hooks.wrap_transport = [](int, std::unique_ptr<Transport> below) {
      return std::make_unique<SignalInRing>(std::move(below));
    };
    world.emplace(1, FakeDelays{}, no_limits(), hooks);
  }
  Hooks hooks;
  std::optional<World> world;
  Tensor x = tensor({1});
  std::atomic<Runtime*> runtime{nullptr};
  std::atomic<bool> has_left{false};
  std::string report;
};

JobOfRing& job_of_ring() {
  static JobOfRing& one = *new JobOfRing;
  return one;
}

TEST(ExitInLine, DoesNotWaitForTheCallThatItInterrupts) {
  struct sigaction handler {};
  struct sigaction before {};
  handler.sa_handler = [](int) {
    job_of_ring().report = job_of_ring().runtime.load()->shutdown(1s);
    job_of_ring().has_left = true;
  };
  sigaction(SIGUSR1, &handler, &before);
  job_of_ring().world->each([](Runtime& runtime, int) {
    job_of_ring().runtime = &runtime;
    std::thread submitting([&] {
      SignalInRing::is_due = true;
      const auto handle = runtime.submit(submission("x", job_of_ring().x));
      EXPECT_EQ(error_of(*handle), "");  // the handler has returned
    });
    if (!comes_true(job_of_ring().has_left)) {
      ADD_FAILURE() << "shutdown() does not return";
      std::abort();  // the thread that submits has the stack of this test
    }
    submitting.join();
    EXPECT_EQ(job_of_ring().report, "exit() was called while this thread was in a collective");
    EXPECT_TRUE(runtime.left_from_within());
  });
  sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace
}  // namespace horon::core
