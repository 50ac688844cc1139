// The process sets of one rank that have something to do. A turn of the loop steps these alone: a
// program may have hundreds of sets, and to look at one that rests costs about a microsecond.
//
// What happens to a set comes by a call of its runner, which adds itself here. It stays until it
// rests or waits for the next call, such as a message. Only the clock calls nobody: so each runner
// is looked at from time to time (look_round.h).
#pragma once

#include <cstddef>
#include <vector>

#include "horon/core/negotiation/effects.h"

namespace horon::core {

class SetRunner;

class BusyRunners {
 public:
  // The time of this turn, for what happens in it.
  void set_time(Nanos now) { now_ = now; }
  Nanos time() const { return now_; }

  // There are so many runners in all: then add() needs no memory.
  void reserve(size_t count);
  // It is not in the list, and `waited` when it was dropped.
  void add(SetRunner& runner, bool waited) noexcept;
  // A runner that does not wait goes for ever.
  void remove(const SetRunner& runner) noexcept;
  // After a turn.
  void drop_idle() noexcept;
  void clear() noexcept;

  // While a loop runs over them more may come, at the end.
  size_t count() const { return list_.size(); }
  SetRunner& operator[](size_t index) const { return *list_[index]; }
  const std::vector<SetRunner*>& list() const { return list_; }
  // All runners are, also those that are not in the list.
  bool all_at_rest() const;

 private:
  std::vector<SetRunner*> list_;
  size_t waiting_ = 0;  // runners that are not in the list and not at rest
  Nanos now_ = 0;
};

}  // namespace horon::core
