// In which order the collectives of several process sets enter the device of a rank: the same on
// all ranks that the sets share.
//
// A kernel of NCCL waits on the device for its peers. If two sets enter the devices of two ranks in
// unlike orders, and a device runs one of them only, both wait for ever. Each set has a log of its
// own, so the logs give no common order. Numbers do: for its next collective each member of a set
// proposes one above all that it has seen, and the largest of them is the collective's. A rank lets
// collectives in by rising number, and by set where numbers are equal. One waits as long as another
// one here may still get a smaller number; that takes one small message between the members of the
// other set, and nothing on a device, so no wait lasts for ever. (Skeen's multicast.)
#pragma once

#include <cstdint>
#include <map>
#include <memory>

namespace horon::core {
class Event;
class MemoryQueue;
}  // namespace horon::core

namespace horon::ops {

// Of one rank, for all its sets. A set has one collective at a time here. One thread at a time.
//
// Each set has a stream of its own that waits for its own tensors first, so what enters in one
// order need not run in it: a stream also waits for the collective of another set that has entered
// before.
class LaunchOrder {
 public:
  // The set's next collective has come here. The number to propose.
  int64_t propose(uint32_t set);
  // `number`: the largest that a member has proposed.
  void settle(uint32_t set, int64_t number);
  // After settle().
  bool may_enter(uint32_t set) const;
  // It is in the stream.
  void entered(uint32_t set) { waiting_.erase(set); }

  // What this set enqueues from now on runs behind what another one has enqueued last. Throws
  // Error.
  void wait_in(core::MemoryQueue& queue, uint32_t set);
  // What this set has enqueued by now is the last. Throws Error.
  void becomes_last(core::MemoryQueue& queue, uint32_t set);

 private:
  // By set; not settled: its number may still become larger.
  std::map<uint32_t, int64_t> waiting_;
  int64_t latest_ = 0;
  uint32_t last_set_ = 0;              // to enter
  std::shared_ptr<core::Event> last_;  // happens when its collective ends; null: none has entered
};

}  // namespace horon::ops
