// How long the thread that steps the loop may sleep.
#include "horon/core/runtime/pacer.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

using namespace std::chrono_literals;

TEST(Pacer, WhatGoesOnOnlyWhileItIsDrivenIsDrivenOften) {
  Pacer looks;
  Pacer drives;
  (void)looks.pause(Pacer::Need::Look, false, false);
  (void)drives.pause(Pacer::Need::Drive, false, false);
  std::this_thread::sleep_for(10ms);
  EXPECT_EQ(looks.pause(Pacer::Need::Look, false, false), 1ms);
  EXPECT_LE(drives.pause(Pacer::Need::Drive, false, false), 50us);
}

TEST(Pacer, NewsBeginsTheWaitAnew) {
  Pacer pacer;
  (void)pacer.pause(Pacer::Need::Look, false, false);
  std::this_thread::sleep_for(10ms);
  pacer.news();
  EXPECT_EQ(pacer.pause(Pacer::Need::Look, false, false), 1us);
}

TEST(Pacer, WhatRingsNeedsNoLook) {
  Pacer pacer;
  EXPECT_GT(pacer.pause(Pacer::Need::Ring, false, false), 10ms);
  EXPECT_GT(pacer.pause(Pacer::Need::Ring, true, false),
            pacer.pause(Pacer::Need::Ring, false, false));
}

}  // namespace
}  // namespace horon::core
