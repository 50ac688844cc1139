// How long receives from any rank have waited, as the limits of a stall count it.
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "horon/core/base/log.h"
#include "horon/core/runtime/open_receives.h"
#include "horon/core/runtime/reaper.h"

namespace horon::core {
namespace {

constexpr Nanos kSecond = 1'000'000'000;

class FromNobody final : public OpenReceive {
 public:
  size_t sources() const override { return 0; }
  uint32_t set_of(size_t) const override { return 0; }
  Next next(size_t) override { return {}; }
  bool take(size_t, uint64_t, const std::shared_ptr<HandleState>&) override { return false; }
  void aim(size_t, const std::string&, Submission&) const override {}
  std::string text() const override { return "a message of nobody"; }
};

// A machine that slept for a night finds the receives as they were, also those that had begun a
// moment before.
TEST(OpenReceivesTime, DoesNotCountWhileThisProcessStoodStill) {
  set_log(0, LogLevel::Error);
  for (const Nanos age : {Nanos{0}, kSecond / 10, 2 * kSecond}) {
    Config config;
    config.stall_warn_s = 1;
    config.stall_abort_s = 5;
    Reaper reaper;
    OpenReceives open(config, 0, &reaper, [](uint32_t) { return nullptr; });
    Nanos now = 1000 * kSecond;
    const auto ends = [&](Nanos later) {
      now += later;
      (void)open.look(now);
      return open.overdue(now).has_value();
    };
    open.add(std::make_shared<FromNobody>(), Submission(), now);
    EXPECT_FALSE(ends(0));
    EXPECT_FALSE(ends(age));
    EXPECT_FALSE(ends(10'000 * kSecond));
    EXPECT_FALSE(ends(2 * kSecond));
    EXPECT_TRUE(ends(3 * kSecond));
  }
}

// Nobody looks while no receive waits.
TEST(OpenReceivesTime, CountsFromTheFirstReceiveInAWhile) {
  set_log(0, LogLevel::Error);
  Config config;
  config.stall_warn_s = config.stall_abort_s = 1;
  Reaper reaper;
  OpenReceives open(config, 0, &reaper, [](uint32_t) { return nullptr; });
  (void)open.look(kSecond);
  open.add(std::make_shared<FromNobody>(), Submission(), 100 * kSecond);
  (void)open.look(100 * kSecond);
  EXPECT_FALSE(open.overdue(100 * kSecond).has_value());
  (void)open.look(101 * kSecond);
  EXPECT_TRUE(open.overdue(101 * kSecond).has_value());
}

}  // namespace
}  // namespace horon::core
