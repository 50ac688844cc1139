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
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int64_t kMsNs = 1'000'000;

// Naps of a millisecond each. In each nap the program computes for a share `computed` of the time,
// and threads lose `lost` cores.
class Naps {
 public:
  void take(int naps, double computed, double lost) {
    for (int i = 0; i < naps; ++i) {
      cost_.note_nap(now_ns_);
      now_ns_ += kMsNs;
      cpu_ns_ += computed * kMsNs;
      lost_cores_ += lost;
    }
  }
  bool are_dear() const { return cost_.is_dear(now_ns_); }
  // Takes `naps` naps, and one more whose begin ends the measurement.
  bool are_dear_after(int naps, double computed, double lost) {
    take(naps, computed, lost);
    cost_.note_nap(now_ns_);
    now_ns_ += kMsNs;
    return are_dear();
  }
  // The series of naps is interrupted, as when a driver comes and goes.
  void wait_otherwise(milliseconds time) {
    cost_.interrupt();
    now_ns_ += time.count() * kMsNs;
  }
  int asked() const { return asked_; }

 private:
  int asked_ = 0;
  int64_t now_ns_ = 1'000'000 * kMsNs;
  double cpu_ns_ = 0;
  double lost_cores_ = 0;
  NapCost cost_{[this] {
    ++asked_;
    return NapCost::Usage{static_cast<int64_t>(cpu_ns_), static_cast<int64_t>(lost_cores_)};
  }};
};

// The first nap may be the only one, so a series begins with the second.
constexpr int kFirstVerdict = 1 + NapCost::kNaps;

TEST(NapCost, IsDearWhereTheProgramComputesAndLosesItsCore) {
  EXPECT_FALSE(NapCost().is_dear(0));
  EXPECT_TRUE(Naps().are_dear_after(kFirstVerdict, 1, 1));
  EXPECT_TRUE(Naps().are_dear_after(kFirstVerdict, 7.5, 2)) << "several threads compute";
  EXPECT_FALSE(Naps().are_dear_after(kFirstVerdict, 1, 0.2)) << "on another core";
  EXPECT_FALSE(Naps().are_dear_after(kFirstVerdict, 0, 1)) << "beside threads that wait as well";
  EXPECT_FALSE(Naps().are_dear_after(kFirstVerdict, 0, 0));
}

TEST(NapCost, IsSeenAfterAFullSeries) {
  Naps naps;
  EXPECT_FALSE(naps.are_dear_after(kFirstVerdict - 1, 1, 1));
  EXPECT_EQ(naps.asked(), 1);
  naps.wait_otherwise(milliseconds(0));
  EXPECT_FALSE(naps.are_dear_after(kFirstVerdict - 1, 1, 1)) << "another series";
  EXPECT_TRUE(naps.are_dear_after(0, 1, 1));
}

TEST(NapCost, AsksNothingForANapThatStaysAlone) {
  Naps naps;
  for (int i = 0; i < 100; ++i) {
    naps.take(1, 1, 1);
    naps.wait_otherwise(milliseconds(1));
  }
  EXPECT_EQ(naps.asked(), 0);
}

TEST(NapCost, GoesOnToBeSoUntilThatIsClearlyOver) {
  Naps naps;
  EXPECT_FALSE(naps.are_dear_after(kFirstVerdict, 0.4, 0.4));
  naps.wait_otherwise(milliseconds(0));
  EXPECT_TRUE(naps.are_dear_after(kFirstVerdict, 0.6, 0.6));
  naps.wait_otherwise(milliseconds(0));
  EXPECT_TRUE(naps.are_dear_after(NapCost::kNapsIfDear, 0.4, 0.4));
  naps.wait_otherwise(milliseconds(0));
  EXPECT_FALSE(naps.are_dear_after(NapCost::kNapsIfDear, 1, 0));
  naps.wait_otherwise(milliseconds(0));
  EXPECT_FALSE(naps.are_dear_after(kFirstVerdict, 0.4, 0.4));
  naps.wait_otherwise(milliseconds(0));
  EXPECT_TRUE(naps.are_dear_after(kFirstVerdict, 1, 1));
  naps.wait_otherwise(milliseconds(0));
  EXPECT_FALSE(naps.are_dear_after(NapCost::kNapsIfDear, 0.1, 1));
}

// As in the backward passes of a small model, between which the program waits by itself.
TEST(NapCost, HoldsOverShortSeriesButNotForLong) {
  Naps naps;
  ASSERT_TRUE(naps.are_dear_after(kFirstVerdict, 1, 1));
  for (int step = 0; step < 20; ++step) {
    naps.wait_otherwise(milliseconds(10));
    naps.take(3, 1, 1);
    EXPECT_EQ(naps.are_dear(), step < 19) << step << ": 13 ms each, and 250 since it was seen";
  }
}

// Each series is long enough for a new verdict.
TEST(NapCost, HoldsForEverWhereItIsSeenAgain) {
  Naps naps;
  ASSERT_TRUE(naps.are_dear_after(kFirstVerdict, 1, 1));
  for (int step = 0; step < 100; ++step) {
    naps.wait_otherwise(milliseconds(10));
    EXPECT_TRUE(naps.are_dear_after(NapCost::kNapsIfDear, 1, 1)) << step;
  }
  naps.wait_otherwise(milliseconds(10));
  EXPECT_FALSE(naps.are_dear_after(NapCost::kNapsIfDear, 0, 0)) << "the program sleeps now";
}

int64_t now_ns() { return steady_clock::now().time_since_epoch().count(); }

// Naps until naps are dear. False: they are not dear within the limit.
bool become_dear(NapCost& cost, seconds limit) {
  const auto end = steady_clock::now() + limit;
  while (!cost.is_dear(now_ns()) && steady_clock::now() < end) {
    cost.note_nap(now_ns());
    std::this_thread::sleep_for(microseconds(50));
  }
  return cost.is_dear(now_ns());
}

// Threads that share one core, which other programs may use too.
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
    // It is not known what the program has done in the meantime.
    std::this_thread::sleep_for(std::chrono::nanoseconds(NapCost::kHoldsNs) + milliseconds(20));
    EXPECT_FALSE(cost.is_dear(now_ns()));
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
