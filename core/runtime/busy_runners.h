// The process sets of one rank that have something to do. A turn of the loop steps only these: a
// program may have hundreds of sets, and to look at one that rests costs about a microsecond.
//
// Every event of a set is a call of its runner, which adds itself here. The runner stays until it
// rests or waits for the next event, such as a message. Time limits make no such call, so each
// runner is also stirred from time to time (look_round.h).
#pragma once

#include <cstddef>
#include <vector>

#include "horon/core/negotiation/effects.h"

namespace horon::core {

class SetRunner;

class BusyRunners {
 public:
  // The time of this turn: all events of the turn happen at it.
  void set_time(Nanos now) { now_ = now; }
  Nanos time() const { return now_; }

  // `count`: of all runners. Afterwards add() needs no memory.
  void reserve(size_t count);
  // The runner must not be in the list. `waited`: when it was dropped, it was not at rest.
  void add(SetRunner& runner, bool waited) noexcept;
  // For a runner that is at rest and will be destroyed.
  void remove(const SetRunner& runner) noexcept;
  // Call it after each turn: drops the runners that have nothing to do.
  void drop_idle() noexcept;
  void clear() noexcept;

  // Runners may be added at the end while the caller loops over them.
  size_t count() const { return list_.size(); }
  SetRunner& operator[](size_t index) const { return *list_[index]; }
  const std::vector<SetRunner*>& list() const { return list_; }
  // Whether all runners are at rest, also those that are not in the list.
  bool all_at_rest() const;

 private:
  std::vector<SetRunner*> list_;
  size_t waiting_ = 0;  // runners that are not in the list and not at rest
  Nanos now_ = 0;
};

}  // namespace horon::core
