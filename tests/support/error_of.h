// What a call throws, as text.
#pragma once

#include <functional>
#include <string>

#include "horon/core/base/error.h"

namespace horon::test {

// Returns "config: the text", or "no error" if the call returns. An exception that is no
// horon::Error passes through.
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(to_string(error.code())) + ": " + error.what();
  }
  return "no error";
}

// What the text of error_of() starts with, for these codes.
inline const std::string kInvalid{to_string(ErrorCode::InvalidArgument)};
inline const std::string kMismatch{to_string(ErrorCode::Mismatch)};

}  // namespace horon::test
