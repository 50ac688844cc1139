// How fast the hosts of a job and the network between them are: what the choice of an algorithm
// (algorithm.h) depends on beside the collective and the ranks. Plain data, the same on all ranks.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace horon::ops {

// The defaults hold where nothing was measured.
struct MachineConstants {
  // On one host: the time until another rank goes on with what this one has written, and how fast a
  // rank adds what other ranks have written.
  double handoff_us = 4;
  double sum_bytes_per_us = 8192;
  // On one host: how fast two ranks exchange private memory, both ways at the same time, if the
  // kernel copies it, and if it goes into shared memory and out of it.
  double process_copy_bytes_per_us = 16384;
  double ring_copy_bytes_per_us = 8192;
  // Between two hosts: the time of a short message, and the rate of each way when both are busy.
  double message_us = 16;
  double wire_bytes_per_us = 1024;

  bool operator==(const MachineConstants&) const = default;
};

// Clamps each value to what a machine can have: a measurement may have been disturbed.
MachineConstants within_reason(MachineConstants constants);
// For several hosts, or pairs of hosts: the slowest value of each kind, for which the others wait.
MachineConstants slowest(const MachineConstants& a, const MachineConstants& b);

// "handoff_us=4 sum_bytes_per_us=8192 ...", all fields in their order. Exact both ways. nullopt if
// the text is no such text, or has values that are not within_reason().
std::string to_text(const MachineConstants& constants);
std::optional<MachineConstants> constants_in(std::string_view text);

}  // namespace horon::ops
