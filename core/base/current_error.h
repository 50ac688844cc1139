// The exception that is being handled, as the one type that travels between threads and ranks.
#pragma once

#include "horon/core/base/error.h"

namespace horon::core {

// Call it in a catch block. A horon::Error stays as it is, want of memory becomes Error(Limit), and
// any other exception Error(OperationFailed) with its text.
Error current_error();

}  // namespace horon::core
