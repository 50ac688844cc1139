// The exception that is being handled, as the one type that travels between threads and ranks.
#pragma once

#include "horon/core/base/error.h"

namespace horon::core {

// Call it in a catch block. A horon::Error stays as it is, and want of memory becomes Error(Limit).
// Any other exception becomes an Error of code `other` with the first line of its text: LibTorch
// puts a backtrace behind that.
Error current_error(ErrorCode other = ErrorCode::OperationFailed);

}  // namespace horon::core
