// A receive from any rank: whose message it gets turns out while it is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "horon/core/runtime/submission.h"

namespace horon::core {

// What the program knows about such a receive and the runtime does not: the names of each source's
// messages. Called in the loop, on any thread: must not destroy anything of the program's, nor take
// a lock under which the program calls the runtime.
class OpenReceive {
 public:
  struct Next {
    std::string name;
    uint64_t number = 0;  // tells it from earlier and later ones of the same name
  };

  virtual ~OpenReceive() = default;
  OpenReceive() = default;
  OpenReceive(const OpenReceive&) = delete;
  OpenReceive& operator=(const OpenReceive&) = delete;

  // The ranks that it may come from; fixed.
  virtual size_t sources() const = 0;
  virtual uint32_t set_of(size_t source) const = 0;  // the pair of this rank and the source
  // The next message of this source that no receive has taken. Error(Limit): there is no room for
  // one now; it is asked again in the next turn. Any other Error ends the receive.
  virtual Next next(size_t source) = 0;
  // Takes that message for this receive, whose handle this is. False if it is no longer the next
  // one.
  virtual bool take(size_t source, uint64_t number, const std::shared_ptr<HandleState>& handle) = 0;
  // Turns the receive's submission into one for the message with this name.
  virtual void aim(size_t source, const std::string& name, Submission& submission) const = 0;
  // "a message with tag 3 from any of ranks 0, 2", for people.
  virtual std::string text() const = 0;
};

}  // namespace horon::core
