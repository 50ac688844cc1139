// What the tests of a GradientReducer's errors and options begin with.
#pragma once

#include <limits>
#include <string>

#include "horon/tests/torch_bindings/gradients/gradient_support.h"

namespace horon::testing_support {

inline const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new SessionEnvironment);

// What the texts of these errors start with.
inline const std::string kInvalid{to_string(ErrorCode::InvalidArgument)};
inline const std::string kMismatch{to_string(ErrorCode::Mismatch)};

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

}  // namespace horon::testing_support
