#include "horon/core/base/nap_cost.h"

#include <atomic>
#include <chrono>
#include <sched.h>
#include <thread>

#include <gtest/gtest.h>

#include "horon/core/base/prompt_thread.h"

namespace horon::core {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Naps of a millisecond, in which the program computes for that share of the time and threads lose
// so many cores.
class Naps {
 public:
  bool are_dear(double computed, int lost) {
    cost_.begin(usage_);
    usage_.now_ns += NapCost::kNaps * 1'000'000;
    usage_.cpu_ns += static_cast<int64_t>(computed * NapCost::kNaps * 1'000'000);
    usage_.lost_cores += lost;
    cost_.end(usage_);
    return cost_.is_dear();
  }

 private:
  NapCost cost_;
  NapCost::Usage usage_;
};

TEST(NapCost, IsDearWhereTheProgramComputesAndLosesItsCore) {
  EXPECT_FALSE(NapCost().is_dear());
  EXPECT_TRUE(Naps().are_dear(1, NapCost::kNaps));
  EXPECT_TRUE(Naps().are_dear(7.5, 2 * NapCost::kNaps)) << "several threads compute";
  EXPECT_FALSE(Naps().are_dear(1, 3)) << "on another core";
  EXPECT_FALSE(Naps().are_dear(0, NapCost::kNaps)) << "beside threads that wait as well";
  EXPECT_FALSE(Naps().are_dear(0, 0));
}

TEST(NapCost, GoesOnToBeSoUntilThatIsClearlyOver) {
  Naps naps;
  EXPECT_FALSE(naps.are_dear(0.4, 6));
  EXPECT_TRUE(naps.are_dear(0.6, 10));
  EXPECT_TRUE(naps.are_dear(0.4, 6));
  EXPECT_FALSE(naps.are_dear(1, 2));
  EXPECT_FALSE(naps.are_dear(0.4, 6));
  EXPECT_TRUE(naps.are_dear(1, 16));
  EXPECT_FALSE(naps.are_dear(0.1, 16));
}

int64_t now_ns() { return steady_clock::now().time_since_epoch().count(); }

// Until they are dear. False: not so far.
bool become_dear(NapCost& cost, seconds limit) {
  const auto end = steady_clock::now() + limit;
  while (!cost.is_dear() && steady_clock::now() < end) {
    cost.note_nap(now_ns());
    std::this_thread::sleep_for(microseconds(50));
  }
  return cost.is_dear();
}

// Threads that share one core, which the machine may give to others too.
class NapsOnOneCore : public testing::Test {
 protected:
  NapsOnOneCore() {
    sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof(one), &one);
  }
  ~NapsOnOneCore() override { sched_setaffinity(0, sizeof(before_), &before_); }

  cpu_set_t before_;
};

TEST_F(NapsOnOneCore, BesideAThreadThatComputes) {
  std::atomic<bool> over = false;
  std::thread napping([&] {
    make_thread_prompt();
    NapCost cost;
    EXPECT_TRUE(become_dear(cost, seconds(20)));
    // What the program does meanwhile is not known.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    cost.note_nap(now_ns());
    EXPECT_FALSE(cost.is_dear());
    over = true;
  });
  while (!over.load(std::memory_order_relaxed)) {
  }
  napping.join();
}

TEST_F(NapsOnOneCore, BesideAThreadThatSleeps) {
  std::thread napping([] {
    make_thread_prompt();
    NapCost cost;
    EXPECT_FALSE(become_dear(cost, seconds(1)));
  });
  napping.join();
}

}  // namespace
}  // namespace horon::core
