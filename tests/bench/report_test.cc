// What the report of a benchmark says.
#include "horon/bench/report.h"

#include <vector>

#include <gtest/gtest.h>

namespace horon::bench {
namespace {

Placement with_ratio(double ratio) {
  Placement placement;
  placement.peers.emplace_back();
  placement.peers.back().ratio.median = ratio;
  return placement;
}

TEST(Report, TheWorstRatioIsThatOfEitherForm) {
  std::vector<Row> rows(2);
  EXPECT_EQ(worst_ratio(rows), 0);
  rows[0].out_of_place = with_ratio(2);
  rows[0].in_place = with_ratio(0.5);
  EXPECT_EQ(worst_ratio(rows), 2);
  rows[1].in_place = with_ratio(3);
  EXPECT_EQ(worst_ratio(rows), 3);
  rows[1].out_of_place = Placement();  // the peer has no such form
  EXPECT_EQ(worst_ratio(rows), 3);
}

}  // namespace
}  // namespace horon::bench
