// The one exception type of Horon, and the check for programmer errors.
//
// Operating failures (a mismatch between ranks, a dead peer, a bad knob) are `horon::Error` with a
// code; between threads and ranks they travel as values and are rethrown where the program waits.
// Broken invariants inside the library abort.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace horon {

enum class ErrorCode : unsigned char {
  InvalidArgument,  // this call is wrong on this rank alone
  Mismatch,         // ranks disagree about a tensor
  NotInitialized,   // init() has not been called, or shutdown() has
  DuplicateName,    // a tensor of that name is still in flight
  RankLeft,         // a rank has shut down and can't take part
  Stall,            // ranks did not come within stall_abort
  PeerDead,         // a process died or does not answer
  OperationFailed,  // a collective failed while running
  Timeout,          // wait(timeout) ran out; the collective goes on
  Config,           // a knob, a launcher or a version is wrong
  Limit,            // a documented limit is exceeded
  Internal,         // a broken invariant that reached the user as a value
};

std::string_view to_string(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

namespace core {
[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& what);
}  // namespace core

}  // namespace horon

// Programmer errors: prints the condition and the place, then aborts. Always on.
#define HORON_CHECK(condition, what) \
  ((condition) ? void(0) : ::horon::core::check_failed(#condition, __FILE__, __LINE__, (what)))
