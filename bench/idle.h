// The CPU time that a rank's process uses while the program does not use Horon.
#pragma once

#include <vector>

#include "horon/bench/mpi_peer.h"

namespace horon::bench {

// Collective: all ranks sleep for `seconds`. Returns, in the order of ranks, the percentage of one
// core that each rank's process used meanwhile (user and system time of all its threads).
std::vector<double> measure_idle_percent(MpiPeer& mpi, double seconds);

}  // namespace horon::bench
