// Work in several steps of which each is to be tried, whatever becomes of the others.
#pragma once

#include <optional>

#include "horon/core/base/error.h"

namespace horon::torch_detail {

// Keeps the first error of what it runs.
class Failures {
 public:
  // False if the action threw an Error.
  template <class Action>
  bool run(const Action& action) {
    try {
      action();
      return true;
    } catch (const Error& error) {
      if (!first_) first_ = error;
    }
    return false;
  }
  const std::optional<Error>& first() const { return first_; }

 private:
  std::optional<Error> first_;
};

}  // namespace horon::torch_detail
