// Results of a group's calls that nobody has asked for yet.
#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "horon/torch_bindings/python/process_group/operation.h"

namespace horon::python::process_group {

// Results that lie elsewhere than the caller wants them are copied by a thread of the program when
// it waits. It need not wait for each call: as with collectives in one stream, after a wait for the
// last of several the results of those that ended before it are there, even if their Works are
// gone. Any thread.
class LateResults {
 public:
  // Before the operation's Work is given to the program. Does nothing if it delivers nothing.
  void add(const std::shared_ptr<Operation>& operation);
  // Copies the results of all operations that have ended, in the order of the calls; when it
  // returns they are there. What has failed is told by its own Work.
  void deliver();
  // Lets go of operations whose results a poll or a future has delivered. With the GIL or without.
  void forget_delivered();

 private:
  using Operations = std::list<std::shared_ptr<Operation>>;
  // Under the mutex. What they move to `ended` is released without it: the last reference to a
  // tensor may be one to an object of Python, whose end may call anything.
  void deliver_ended(Operations& ended);
  void take_delivered(Operations& ended);

  std::mutex mutex_;
  Operations operations_;
};

}  // namespace horon::python::process_group
