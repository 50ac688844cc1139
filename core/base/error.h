// The exception type of Horon, and the check for broken invariants.
//
// What can fail in operation (a mismatch between ranks, a dead peer, a bad knob) is a
// `horon::Error` with a code. Between threads and ranks an Error travels as a value; it is rethrown
// where the program waits. A broken invariant inside the library aborts the process.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace horon {

enum class ErrorCode : unsigned char {
  InvalidArgument,  // this call is wrong, whatever the other ranks do
  Mismatch,         // ranks disagree about a tensor
  NotInitialized,   // init() has not been called, or shutdown() has
  DuplicateName,    // a tensor of that name is still in flight
  RankLeft,         // a rank has shut down or joined, and can't take part
  Stall,            // ranks did not submit the tensor within HORON_STALL_ABORT_S
  PeerDead,         // a process died or does not answer
  OperationFailed,  // a collective failed while running
  Timeout,          // the time given to wait() is over; the collective goes on
  Config,           // a knob, a launcher or a version is wrong
  Limit,            // a documented limit is exceeded, or there is no memory
  Internal,         // a broken invariant that is reported instead of aborting
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
// The same text, with a code that may end a job. All other codes promise that the job goes on.
Error that_ends_the_job(const Error& error);

[[noreturn]] void check_failed(const char* condition, const char* file, int line,
                               const std::string& what);
}  // namespace core

}  // namespace horon

// For invariants: prints the condition and its place, then aborts. Also in release builds.
#define HORON_CHECK(condition, what) \
  ((condition) ? void(0) : ::horon::core::check_failed(#condition, __FILE__, __LINE__, (what)))
