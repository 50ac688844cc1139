// What a rank costs while its program does something else.
#pragma once

#include <vector>

#include "horon/bench/mpi_peer.h"

namespace horon::bench {

// Collective: all ranks sleep for so long. Percent of one core that each rank's process used
// meanwhile (user and system time of all its threads), in the order of ranks.
std::vector<double> measure_idle_percent(MpiPeer& mpi, double seconds);

}  // namespace horon::bench
