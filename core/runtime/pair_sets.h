// The process sets of two ranks, in which they send and receive.
//
// Nobody makes such a set: its number follows from its ranks, and what it runs on needs no peer. So
// each of the two has it from its first call on, or from the first message about it. A message from
// one to the other is a broadcast among the two, whose root is the sender: it is matched by its
// name, negotiated, and reported when it stalls, as every entry.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace horon::core {

// Numbers from here on are those of pairs.
inline constexpr uint32_t kFirstPairSet = uint32_t{1} << 31;

inline bool is_pair_set(uint32_t set) { return set >= kFirstPairSet; }
// The number of the set of two ranks of a job of `size` ranks, in either order. Throws
// Error(InvalidArgument) if they are not two ranks of it, Error(Limit) if the job has more than
// 46,340 ranks, whose pairs can't be numbered.
uint32_t pair_set(int one, int other, int size);
// Its ranks, the lower one first; empty if no pair has this number.
std::vector<int> members_of_pair(uint32_t set, int size);
// Names any set in texts, by the number that the program gave or got: "process set 5", or "process
// set 5 (made by its members)". The program gives no number to a group of torch.distributed: "group
// of torch.distributed 3" shows one that the Python package has chosen.
std::string set_text(uint32_t set);

}  // namespace horon::core
