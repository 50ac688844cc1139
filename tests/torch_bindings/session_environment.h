// A running Horon session around all tests of a program, in an MPI that the test's main owns.
#pragma once

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/torch_bindings/session.h"

namespace horon::testing_support {

class SessionEnvironment : public ::testing::Environment {
  void SetUp() override { init(); }
  void TearDown() override { shutdown(); }
};

// What `work` throws, as text that begins with the code; fails the test if it throws nothing or
// something else.
inline std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return std::string(to_string(error.code())) + ": " + error.what();
  } catch (const std::exception& other) {
    ADD_FAILURE() << "no horon::Error but: " << other.what();
    return {};
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace horon::testing_support
