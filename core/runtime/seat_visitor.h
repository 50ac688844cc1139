// Somebody who must know which thread steps the loop.
#pragma once

namespace horon::core {

// A thread of the program may step the loop (loop_seat.h): what a library keeps for each thread is
// then set for Horon's calls, and set back for the program's.
class SeatVisitor {
 public:
  virtual ~SeatVisitor() = default;
  // Called on the thread that steps the loop from now on. One thread at a time.
  virtual void sits_down() noexcept = 0;
  // Called on the same thread, when it stops.
  virtual void gets_up() noexcept = 0;
};

}  // namespace horon::core
