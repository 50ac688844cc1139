#include "horon/core/base/plain_float_mode.h"

#include <cfloat>

#include <gtest/gtest.h>

#include "horon/tests/support/float_control.h"

namespace horon::core {
namespace {

// Each choice that a program may make is undone while a mode lives, and comes back.
TEST(PlainFloatMode, UndoesWhatAProgramHasChosen) {
  const uint64_t before = float_control();
  for (const uint64_t chosen : chosen_float_controls()) {
    set_float_control(chosen);
    uint64_t within = chosen;
    {
      const PlainFloatMode plain;
      within = float_control();
    }
    const uint64_t after = float_control();
    set_float_control(before);
    EXPECT_EQ(within, plain_float_control()) << std::hex << chosen;
    EXPECT_EQ(after, chosen);
  }
}

TEST(PlainFloatMode, KeepsSubnormals) {
  volatile float least = FLT_MIN;
  volatile float half = 0.5F;
  const uint64_t before = float_control();
  int kept = 0;
  for (const uint64_t chosen : chosen_float_controls()) {
    set_float_control(chosen);
    {
      const PlainFloatMode plain;
      kept += least * half > 0 ? 1 : 0;
    }
    set_float_control(before);
  }
  EXPECT_EQ(kept, static_cast<int>(chosen_float_controls().size()));
}

}  // namespace
}  // namespace horon::core
