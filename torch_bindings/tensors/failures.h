// Runs several actions, each of them even if others throw, and keeps the first error. Exceptions of
// other types become an Error (core::current_error()).
#pragma once

#include <optional>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"

namespace horon::torch_detail {

class Failures {
 public:
  // False if the action has thrown.
  template <class Action>
  bool run(const Action& action) {
    try {
      action();
      return true;
    } catch (...) {
      const Error error = core::current_error();
      if (!first_) first_ = error;
    }
    return false;
  }
  const std::optional<Error>& first() const { return first_; }

 private:
  std::optional<Error> first_;
};

}  // namespace horon::torch_detail
