// The one thread-safe door between the program's threads and the holder of the loop's seat.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/runtime/open_receive.h"
#include "horon/core/runtime/submission.h"

namespace horon::core {

struct SetFacts;

// A receive from any rank; the submission is complete but for whose message it is.
struct OpenCall {
  std::shared_ptr<OpenReceive> receive;
  Submission submission;
};
struct JoinCall {
  uint32_t set = 0;
  std::shared_ptr<HandleState> handle;
};
struct AddSetCall {
  uint32_t set = 0;
  std::vector<int> ranks;
  std::shared_ptr<HandleState> handle;
  // Filled before the handle finishes, if this rank is a member.
  std::shared_ptr<std::shared_ptr<const SetFacts>> facts;
};
struct RemoveSetCall {
  uint32_t set = 0;
  std::shared_ptr<HandleState> handle;  // null: this rank leaves and waits for nobody
};
struct ShutdownCall {};
// The job ends with this error.
struct FailCall {
  Error error;
};

using Call = std::variant<Submission, Refusal, OpenCall, JoinCall, AddSetCall, RemoveSetCall,
                          ShutdownCall, FailCall>;

class SubmissionQueue {
 public:
  // `wake` tells the consumer that there is something; it is never called after close().
  explicit SubmissionQueue(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Throws the error given to close(), if closed. Any thread.
  void push(Call call);
  // As push(), but the consumer is not woken: the caller drains the queue itself, or calls
  // announce().
  void push_quietly(Call call);
  void announce();
  // All that is here, in order; the consumer alone.
  void drain(std::vector<Call>& calls);
  // From now on push() throws this error, unless an earlier close() gave another. What is in the
  // queue stays for drain().
  void close(std::shared_ptr<const Error> why) noexcept;

  // This thread is inside one of these calls: a signal handler runs on it, which may have called
  // exit(). It must make none of these calls.
  bool held_by_this_thread() const noexcept { return held_ == this; }

 private:
  class Lock;
  static thread_local const SubmissionQueue* held_;  // by this thread

  const std::function<void()> wake_;
  std::mutex mutex_;
  std::vector<Call> calls_;
  std::atomic<bool> any_{false};  // so that an empty queue costs no lock
  bool announced_ = false;        // the consumer has been woken for what is here
  std::shared_ptr<const Error> closed_;
};

}  // namespace horon::core
