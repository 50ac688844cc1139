// What a report of a stall says beside which ranks are missing.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace horon::core::stall_report_test
