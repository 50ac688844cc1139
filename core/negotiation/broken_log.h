// The errors of who gets an impossible message: the other side broke the control protocol.
#pragma once

#include <string>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::core {

[[noreturn]] inline void broken(const std::string& what) {
  throw Error(ErrorCode::Internal, concat("the coordinator broke the control protocol: ", what));
}

[[noreturn]] inline void broken(int rank, const std::string& what) {
  throw Error(ErrorCode::Internal, concat("rank ", rank, " broke the control protocol: ", what));
}

}  // namespace horon::core
