// exit() in a signal handler, on a thread that is in line for the loop.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <sys/types.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>

#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using namespace test_world;
using Clock = std::chrono::steady_clock;

bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string status;
  std::getline(file, status);
  const size_t end_of_name = status.rfind(')');
  return end_of_name != std::string::npos && status.substr(end_of_name + 1, 2) == " S";
}

void wait_for(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::sleep_for(1ms);
}

// A runtime that was left from within is never destroyed: the process ends.
struct Job {
  std::atomic<bool> in_turn{false};
  std::atomic<bool> turn_may_end{false};
  std::atomic<bool> is_leaving{false};
  std::atomic<bool> has_left{false};
  std::string report;
  Runtime* runtime = nullptr;
  World world{1, FakeDelays{}, no_limits()};
  float gathered = 0;
};
Job& job() {
  static Job* const kept = new Job;  // outlives the search for leaks
  return *kept;
}

void leave(int /*signal*/) {
  job().is_leaving = true;
  job().report = job().runtime->shutdown(1s);
  job().has_left = true;
}

// An allgather that keeps the background thread in its turn until the turn may end.
std::shared_ptr<HandleState> begin_long_turn(Runtime& runtime, Tensor& rows) {
  Submission gather = submission("rows", rows);
  gather.memory.front().output = nullptr;
  gather.allocate_output = [](size_t, int64_t, MemoryQueue&) {
    job().in_turn = true;
    wait_for(job().turn_may_end);
    return reinterpret_cast<std::byte*>(&job().gathered);
  };
  const auto handle = runtime.submit(std::move(gather));
  wait_for(job().in_turn);
  return handle;
}

// The background thread is in a long turn. It makes way for a thread that waits, and does not end
// before that has been.
TEST(LeavingInLine, AThreadDoesNotWaitForItself) {
  job().world.each([&](Runtime& runtime, int) {
    Tensor rows = tensor({1}, CollectiveKind::Allgather);
    const auto in_background = begin_long_turn(runtime, rows);
    job().runtime = &runtime;
    struct sigaction leaving {};
    struct sigaction before {};
    leaving.sa_handler = leave;
    sigaction(SIGUSR1, &leaving, &before);
    std::atomic<pid_t> in_line{0};
    std::thread waiting([&] {
      Tensor mine = tensor({1});
      const auto handle = runtime.submit(submission("x", mine));
      in_line = gettid();
      EXPECT_TRUE(handle->wait(60s));
    });
    while (in_line == 0 || !sleeps(in_line)) std::this_thread::sleep_for(1ms);
    pthread_kill(waiting.native_handle(), SIGUSR1);
    wait_for(job().is_leaving);
    job().turn_may_end = true;
    const auto limit = Clock::now() + 20s;
    while (!job().has_left && Clock::now() < limit) std::this_thread::sleep_for(1ms);
    if (!job().has_left) {
      ADD_FAILURE() << "shutdown() does not return";
      std::abort();  // the thread that waits has the stack of this test
    }
    EXPECT_EQ(job().report, "exit() was called while this thread was in a collective");
    EXPECT_TRUE(runtime.left_from_within());
    waiting.join();  // here the handler has returned, and the collectives go on
    EXPECT_EQ(error_of(*in_background), "");
    sigaction(SIGUSR1, &before, nullptr);
  });
}

}  // namespace
}  // namespace horon::core
