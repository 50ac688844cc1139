// A moment in the work of a device, which somebody else can wait for.
#pragma once

namespace horon::core {

// Recorded behind some work; it happens when that work is done. "The producer has written this
// tensor" is one, "the result of this batch is in memory" another. Any thread.
class Event {
 public:
  virtual ~Event() = default;
  // Asks without waiting. Throws horon::Error if the device has failed.
  virtual bool happened() = 0;
  // Blocks the calling thread until it has happened; throws as happened() does. For programs that
  // read the memory on the host: the library itself never calls it.
  virtual void wait() = 0;
};

}  // namespace horon::core
