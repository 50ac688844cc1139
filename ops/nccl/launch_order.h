// The order in which the collectives of several lines enter the device of a rank; the same on all
// ranks that share the lines. A line is a sequence of collectives with an order of its own: those
// of a process set, or, in a set between hosts, each of the two halves of its allreduces.
//
// A kernel of NCCL waits on the device for its peers. If two lines enter the devices of two ranks
// in different orders, and a device runs only one of them, both wait for ever. Each set has its own
// log, so the logs give no common order. Numbers do: for the line's next collective each member
// proposes a number above all that it has seen, and the largest one becomes the collective's. A
// rank lets collectives in by rising number, and by line if numbers are equal. One waits as long as
// another one here may still get a smaller number. That takes one small message between the members
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

// For all lines of one rank. A line has one collective here at a time. One thread at a time.
//
// Lines have streams of their own, which first wait for tensors, so what enters in one order need
// not run in it. Therefore a stream also waits for the last collective of another line that entered
// before.
class LaunchOrder {
 public:
  // The line's next collective has come here. Returns the number to propose.
  int64_t propose(LaunchLine line);
  // `number`: the largest that a member has proposed.
  void settle(LaunchLine line, int64_t number);
  // After settle().
  bool may_enter(LaunchLine line) const;
  // The line's collective is in the stream.
  void entered(LaunchLine line) { waiting_.erase(line); }

  // What this line enqueues from now on runs behind what another line has enqueued last. Throws
  // Error.
  void wait_in(core::MemoryQueue& queue, LaunchLine line);
  // What this line has enqueued by now becomes the last. Throws Error.
  void becomes_last(core::MemoryQueue& queue, LaunchLine line);

 private:
  // Until a line has settled, its number may still become larger.
  std::map<LaunchLine, int64_t> waiting_;
  int64_t latest_ = 0;
  LaunchLine last_line_;               // the one that entered last
  std::shared_ptr<core::Event> last_;  // happens when its collective ends; null: none has entered
};

}  // namespace horon::ops
