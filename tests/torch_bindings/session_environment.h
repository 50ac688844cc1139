// A running Horon session around all tests of a program, in an MPI that the test's main owns. To
// include this file is enough; a program has one session, however many of its files do so.
#pragma once

#include <gtest/gtest.h>

#include "horon/tests/support/error_of.h"
#include "horon/torch_bindings/session.h"

namespace horon::testing_support {

using test::error_of;
using test::kInvalid;
using test::kMismatch;

class SessionEnvironment : public ::testing::Environment {
  void SetUp() override {
    if (!is_initialized()) init();
  }
  void TearDown() override {
    if (is_initialized()) shutdown();
  }
};

// A session in the place of the one that all tests have, until its end: without limits of time, so
// that nothing thaws because a rank is late. Collective.
class SessionWithoutLimits {
 public:
  SessionWithoutLimits() {
    shutdown();
    init({.set = {{"HORON_DEAD_AFTER_S", "0"}, {"HORON_STALL_WARN_S", "0"}}});
  }
  ~SessionWithoutLimits() {
    shutdown();
    init();
  }
  SessionWithoutLimits(const SessionWithoutLimits&) = delete;
  SessionWithoutLimits& operator=(const SessionWithoutLimits&) = delete;
};

inline const auto* const kSession = ::testing::AddGlobalTestEnvironment(new SessionEnvironment);

}  // namespace horon::testing_support
