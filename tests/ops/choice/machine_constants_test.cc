#include "horon/ops/choice/machine_constants.h"

#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace horon::ops {
namespace {

TEST(MachineConstants, TextGoesBothWaysExactly) {
  EXPECT_EQ(to_text({}),
            "handoff_us=4 sum_bytes_per_us=8192 process_copy_bytes_per_us=16384 "
            "ring_copy_bytes_per_us=8192 message_us=16 wire_bytes_per_us=1024");
  const MachineConstants constants{0.1 + 0.2, 9876.54321, 6789.01, 8765.4321, 1.0 / 3, 117.375};
  EXPECT_EQ(constants_in(to_text(constants)), constants);
}

TEST(MachineConstants, OtherTextIsRefused) {
  const std::string good = to_text({});
  for (const std::string& text :
       {std::string(), std::string("x"), good + " more=1", good.substr(0, good.size() - 5),
        "handoff_us=nan" + good.substr(good.find(' ')),
        "handoff_us=-4" + good.substr(good.find(' ')),
        "handoff_us=1e9" + good.substr(good.find(' ')),
        "handoff_us=" + good.substr(good.find(' '))}) {
    EXPECT_EQ(constants_in(text), std::nullopt) << text;
  }
}

TEST(MachineConstants, StayWithinReason) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const MachineConstants wild = within_reason({nan, infinity, 0, infinity, -1, 0});
  EXPECT_EQ(wild.handoff_us, 0.05);
  EXPECT_EQ(wild.sum_bytes_per_us, 1e6);
  EXPECT_EQ(wild.process_copy_bytes_per_us, 64);
  EXPECT_EQ(wild.ring_copy_bytes_per_us, 1e6);
  EXPECT_EQ(wild.message_us, 0.1);
  EXPECT_EQ(wild.wire_bytes_per_us, 0.1);
  EXPECT_EQ(within_reason({}), MachineConstants());
}

TEST(MachineConstants, TheSlowestOfEachKindCounts) {
  EXPECT_EQ(slowest({1, 2000, 5000, 8000, 30, 400}, {2, 1000, 6000, 7000, 20, 500}),
            (MachineConstants{2, 1000, 5000, 7000, 30, 400}));
}

}  // namespace
}  // namespace horon::ops
