#include "horon/core/base/error.h"

#include <array>
#include <cstdio>
#include <cstdlib>

namespace horon {

std::string_view to_string(ErrorCode code) {
  constexpr std::array<std::string_view, 12> names = {
      "invalid argument", "mismatch", "not initialized", "duplicate name", "rank left", "stall",
      "peer dead",        "failed",   "timeout",         "configuration",  "limit",     "internal"};
  return names.at(static_cast<size_t>(code));
}

namespace core {

Error that_ends_the_job(const Error& error) {
  switch (error.code()) {
    case ErrorCode::Stall:
    case ErrorCode::PeerDead:
    case ErrorCode::OperationFailed:
    case ErrorCode::Internal:
      return error;
    default:
      return Error(ErrorCode::OperationFailed, error.what());
  }
}

void check_failed(const char* condition, const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "horon: broken invariant at %s:%d: %s: %s\n", file, line, condition,
               what.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace core
}  // namespace horon
