// Which peers still answer: says when to ask a silent peer, and when one has been silent for too
// long (PROTOCOL.md, section 8).
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "horon/core/negotiation/effects.h"

namespace horon::core {

class Liveness {
 public:
  // A peer is asked once per ask_every, and dead when a question stays unanswered for dead_after
  // (0: never, and so nobody is asked).
  Liveness(Nanos ask_every, Nanos dead_after) : ask_every_(ask_every), dead_after_(dead_after) {}

  // Anything at all came from this peer.
  void heard(int peer);
  // Others wait for this peer. True if a Ping should be sent now.
  bool suspect(int peer, Nanos now);
  // The peer that has been silent longest, if that is longer than dead_after.
  std::optional<int> dead(Nanos now) const;
  // This process itself stood still for so long (it was stopped, or the machine slept): that time
  // counts against no peer.
  void forgive(Nanos gap);

  Nanos dead_after() const { return dead_after_; }

 private:
  struct Asked {
    Nanos first;  // of the questions without an answer
    Nanos last;
    bool answered;
  };
  const Nanos ask_every_;
  const Nanos dead_after_;
  std::map<int, Asked> asked_;
  int unanswered_ = 0;
};

}  // namespace horon::core
