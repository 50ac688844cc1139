// The CPU time that a rank's process uses while the program does not use Horon.
#pragma once

#include <vector>

#include "horon/bench/mpi_peer.h"

namespace horon::bench {

// Percentages of one core that the ranks' processes use (user and system time of all threads), in
// the order of ranks.
struct IdlePercents {
  std::vector<double> mean;
  // The median over ten parts of the time. A virtual machine that its host stops counts the pause
  // as CPU time of the process that ran. Such a pause is in one part, while polling of a rank is in
  // all.
  std::vector<double> median;
};

// Collective: all ranks sleep for `seconds`.
IdlePercents measure_idle_percents(MpiPeer& mpi, double seconds);

}  // namespace horon::bench
