// The contenders of training_step_bench: ways to train one model. Blocks of steps of all of them
// alternate.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "horon/bench/mpi_peer.h"

namespace horon::bench {

struct TrainingPlan {
  int blocks = 11;       // for each contender
  int steps = 0;         // in a block; 0: as many as take about half a second
  int warmup_steps = 3;  // at least 1
};

struct TrainingTimes {
  std::string model;
  int64_t parameters = 0;
  int64_t tensors = 0;
  int steps = 0;
  // By contender: seconds per step, one for each block, averaged over the ranks.
  //   alone  no communication: no rank waits for another
  //   floor  no communication, but an MPI_Barrier at the end of each step
  //   horon  DistributedOptimizer
  std::map<std::string, std::vector<double>> seconds;
  double exposed_s = 0;  // seconds per step of "horon" that the program waited for communication
  bool ranks_agree = false;  // after all steps of "horon" the parameters are equal, bit by bit

  // Of each block: the time of one contender over that of the other.
  std::vector<double> ratios(const std::string& contender, const std::string& base) const;
};

// Collective. Throws Error.
TrainingTimes time_training(const std::string& model, const TrainingPlan& plan, MpiPeer& peer);

}  // namespace horon::bench
