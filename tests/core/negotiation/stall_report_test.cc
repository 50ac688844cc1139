// What a report of a stall says beside which ranks are missing, and when it comes again.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/negotiation/controller.h"
#include "horon/core/negotiation/coordinator.h"
#include "horon/core/negotiation/wire_format.h"

namespace horon::core::stall_report_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Nanos kSecond = 1'000'000'000;
constexpr const char* kHint = "is one of them in a branch that not all ranks take?";

void submit(Coordinator& coordinator, int rank, const std::string& name) {
  EntrySpec spec;
  spec.parts = {{name, {4}}};
  Ready ready;
  ready.name = name;
  ready.spec = std::make_shared<const EntrySpec>(spec);
  coordinator.take(rank, ready, 0, 0);
}

// Rank 1 has left out "loss", and is in the next step.
TEST(StallReport, SaysWhichRanksWaitForEachOther) {
  Coordinator coordinator({.ranks = {3, 5, 7}});
  submit(coordinator, 0, "loss");
  submit(coordinator, 2, "loss");
  submit(coordinator, 1, "bucket");
  EXPECT_THAT(
      coordinator.stall_report(kSecond, kSecond),
      EndsWith(std::string("; rank 3 waits with \"loss\" and rank 5 with \"bucket\": ") + kHint));
}

// A rank that is late has none of them; one that lags behind has some of what the others have.
TEST(StallReport, SaysNothingOfThatWhereARankIsSlow) {
  Coordinator coordinator({.ranks = {0, 1, 2}});
  submit(coordinator, 0, "a");
  submit(coordinator, 0, "b");
  submit(coordinator, 1, "a");
  const std::string report = coordinator.stall_report(kSecond, kSecond);
  EXPECT_THAT(report, HasSubstr("\"b\": waiting for ranks 1 and 2"));
  EXPECT_THAT(report, Not(HasSubstr(kHint)));
}

// The stall has lasted for 2 s before a pause of this process, and then for 2 s more.
TEST(StallReport, APauseOfThisProcessMakesNoNewStallOfAnOldOne) {
  Controller::Options options;
  options.size = 2;
  options.dead_after = 0;
  options.stall_warn_after = kSecond;
  Controller controller(options);
  EntrySpec spec;
  spec.parts = {{"x", {4}}};
  size_t warnings = 0;
  Nanos now = 0;
  const auto run_for = [&](Nanos time) {
    for (const Nanos end = now + time; now < end; now += kSecond / 10) {
      controller.tick(now);
      warnings += controller.take_effects().warnings.size();
    }
  };
  run_for(kSecond);
  controller.submit({1, "x", std::make_shared<const EntrySpec>(spec), {}, {}});
  run_for(2 * kSecond);
  EXPECT_EQ(warnings, 1);
  now += 60 * kSecond;
  run_for(kSecond / 2);
  EXPECT_EQ(warnings, 1) << "it is due 2 s after the first";
  run_for(2 * kSecond);
  EXPECT_EQ(warnings, 2);
}

// Rank 1 has left a moment before the pause.
TEST(StallReport, APauseOfThisProcessIsNotTimeInWhichOthersWereAway) {
  Coordinator coordinator({.ranks = {0, 1}});
  coordinator.take(1, Join{}, 0, 0);
  coordinator.forgive(60 * kSecond);
  EXPECT_EQ(coordinator.away_report(60 * kSecond, kSecond), "");
  EXPECT_THAT(coordinator.away_report(61 * kSecond, kSecond), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace horon::core::stall_report_test
