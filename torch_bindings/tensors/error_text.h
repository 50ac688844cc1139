// What an exception says, fit for a line of text that goes to other ranks.
#pragma once

#include <exception>
#include <string>

#include "horon/core/base/error.h"

namespace horon::torch_detail {

// The text up to its first line break, without LibTorch's backtrace.
std::string error_text(const std::exception& error);

// For a catch (...) block. A horon::Error stays what it is; anything else becomes an Error of code
// `other`.
Error current_error(ErrorCode other);

}  // namespace horon::torch_detail
