// Times a hand-off between two ranks of one host, how fast one adds what the other has written, and
// how fast they exchange private memory. The two pass a turn to and fro: first with nothing, then
// with a block to add, and then with a block to copy (copy_rounds.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

namespace horon::ops {

class HostTiming {
 public:
  // Zeroed memory that both ranks share, 64-byte aligned, for one measurement.
  static size_t area_bytes();

  struct Times {
    double handoff_us = 0;
    double sum_bytes_per_us = 0;
    // Not set if there is no peer to copy from.
    double process_copy_bytes_per_us = 0;
    double ring_copy_bytes_per_us = 0;
  };
  // Both ranks call it at about the same time. The leading rank gets the times, if its peer answers
  // within `limit` (counted anew for the copies), and ends the other's call, too. The other's call
  // ends by itself if nothing comes within four times the limit. Neither waits longer. `peer`: the
  // process of the other rank; 0 on both if the kernel may not copy between them. Throws if there
  // is no memory.
  static std::optional<Times> measure(std::byte* area, bool leads, int peer,
                                      std::chrono::microseconds limit);
};

}  // namespace horon::ops
