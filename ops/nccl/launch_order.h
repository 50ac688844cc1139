// In which order the collectives of several lines enter the device of a rank: the same on all ranks
// that the lines share. A line is what enters in an order of its own: the collectives of a process
// set; of a set between hosts also each of the two halves of an allreduce.
//
// A kernel of NCCL waits on the device for its peers. If two lines enter the devices of two ranks
// in unlike orders, and a device runs one of them only, both wait for ever. Each set has a log of
// its own, so the logs give no common order. Numbers do: for its next collective each member of a
// line proposes one above all that it has seen, and the largest of them is the collective's. A rank
// lets collectives in by rising number, and by line where numbers are equal. One waits as long as
// another one here may still get a smaller number; that takes one small message between the members
// of the other line, and nothing on a device, so no wait lasts for ever. (Skeen's multicast.)
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

namespace horon::core {
class Event;
class MemoryQueue;
}  // namespace horon::core

namespace horon::ops {

// The same on all members.
struct LaunchLine {
  uint32_t set = 0;
  enum class Of : uint8_t { Set, ReduceOnHost, GatherOnHost } of = Of::Set;
  bool operator==(const LaunchLine&) const = default;
  bool operator<(const LaunchLine& other) const {
    return std::tie(set, of) < std::tie(other.set, other.of);
  }
};

// Of one rank, for all its lines. A line has one collective at a time here. One thread at a time.
//
// Lines have streams of their own, which wait for tensors first, so what enters in one order need
// not run in it: a stream also waits for the collective of another line that has entered before.
class LaunchOrder {
 public:
  // The line's next collective has come here. The number to propose.
  int64_t propose(LaunchLine line);
  // `number`: the largest that a member has proposed.
  void settle(LaunchLine line, int64_t number);
  // After settle().
  bool may_enter(LaunchLine line) const;
  // It is in the stream.
  void entered(LaunchLine line) { waiting_.erase(line); }

  // What this line enqueues from now on runs behind what another one has enqueued last. Throws
  // Error.
  void wait_in(core::MemoryQueue& queue, LaunchLine line);
  // What this line has enqueued by now is the last. Throws Error.
  void becomes_last(core::MemoryQueue& queue, LaunchLine line);

 private:
  // Until a line has settled, its number may still become larger.
  std::map<LaunchLine, int64_t> waiting_;
  int64_t latest_ = 0;
  LaunchLine last_line_;               // to enter
  std::shared_ptr<core::Event> last_;  // happens when its collective ends; null: none has entered
};

}  // namespace horon::ops
