// Runs several actions, each of them even if others throw, and keeps the first error. Exceptions of
// other types become an Error (error_text.h).
#pragma once

#include <optional>

#include "horon/core/base/error.h"
#include "horon/torch_bindings/tensors/error_text.h"

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
      const Error error = current_error(ErrorCode::OperationFailed);
      if (!first_) first_ = error;
    }
    return false;
  }
  const std::optional<Error>& first() const { return first_; }

 private:
  std::optional<Error> first_;
};

}  // namespace horon::torch_detail
