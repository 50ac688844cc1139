// A thread that waits for a slow rank and must look for its messages again and again.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "horon/tests/core/runtime/forwarding_transport.h"
#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using namespace test_world;

// Counts the waits of one rank, as if its peers sent by MPI.
class CountedWaits final : public ForwardingTransport {
 public:
  struct Counts {
    std::atomic<int> all{0};
    std::atomic<bool> slow{false};  // the wait has lasted long; from then on:
    std::atomic<int> looks{0};      // waits that began with a look
    std::atomic<int> sleeps{0};
  };
  CountedWaits(std::unique_ptr<Transport> below, Counts& counts)
      : ForwardingTransport(std::move(below)), counts_(counts) {}
  bool must_poll() const override { return true; }
  void wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) override {
    EXPECT_GT(wait_policy().look.yields, 0) << "short waits of this rank begin with a look";
    if (counts_.slow) ++(policy.look.yields > 0 ? counts_.looks : counts_.sleeps);
    ++counts_.all;
    ForwardingTransport::wait(timeout, policy);
  }

 private:
  Counts& counts_;
};

// Pauses are shorter than a look there. If each began with one, the thread would never sleep, and
// take its core from others for as long as the slow rank takes.
TEST(LongWait, SleepsInEachPause) {
  CountedWaits::Counts counts;
  Hooks hooks;
  hooks.wrap_transport = [&](int rank,
                             std::unique_ptr<Transport> below) -> std::unique_ptr<Transport> {
    if (rank == 1) return below;
    return std::make_unique<CountedWaits>(std::move(below), counts);
  };
  World world(2, FakeDelays{}, no_limits(), hooks);
  world.each([&](Runtime& runtime, int rank) {
    Tensor mine = tensor({1});
    // So the loop is there: a thread that waits before that leaves it to the background thread.
    EXPECT_EQ(error_of(*runtime.run(submission("first", mine))), "");
    if (rank == 1) {
      // On a busy machine the first wait may be long already when rank 0's thread comes to it.
      while (counts.all == 0) std::this_thread::sleep_for(1ms);
      std::this_thread::sleep_for(100ms);
      counts.slow = true;
      while (counts.looks + counts.sleeps < 20) std::this_thread::sleep_for(1ms);
      counts.slow = false;
    }
    EXPECT_EQ(error_of(*runtime.run(submission("x", mine))), "");
  });
  EXPECT_LE(counts.looks, 1);  // the thread may have paused for long between pause() and wait()
}

}  // namespace
}  // namespace horon::core
