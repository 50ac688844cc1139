// A message that is received from any rank: whose it is turns out while the receive is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "horon/core/runtime/submission.h"

namespace horon::core {

// What the program knows of such a receive, and the runtime does not: how the messages of each
// source are called. Called in the loop, on any thread: it destroys nothing of the program's, and
// takes no lock under which the program calls the runtime.
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
  // The next message of this source that no receive has taken. Throws Error(Limit) while there can
  // be none: asked again in the next turn. Another Error ends the receive.
  virtual Next next(size_t source) = 0;
  // If that is still the next one: this receive has it, and the handle is that of its submission.
  virtual bool take(size_t source, uint64_t number, const std::shared_ptr<HandleState>& handle) = 0;
  // Makes the submission that of the message with this name.
  virtual void aim(size_t source, const std::string& name, Submission& submission) const = 0;
  // "a message with tag 3 from any of ranks 0, 2", for people.
  virtual std::string text() const = 0;
};

}  // namespace horon::core
