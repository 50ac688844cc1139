// The contenders of training_step_bench: ways to train one model. Blocks of steps of all of them
// alternate.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "horon/bench/mpi_peer.h"

namespace horon::bench {

struct TrainingPlan {
  std::string optimizer = "sgd";  // with momentum; or "adam", "adamw"
  at::Device device = at::kCPU;
  int blocks = 11;          // for each contender
  int steps = 0;            // in a block; 0: as many as take about half a second
  int warmup_steps = 3;     // at least 1
  bool shard = false;       // also time optimizers whose state is shared out over the ranks
  bool shuffled = false;    // also time optimizers that were given parameters in random order
  int64_t local_steps = 0;  // also time LocalSgd with an average after so many; 0: not
  int64_t power_sgd = 0;    // also time PowerSgd with matrices of this rank; 0: not
  bool buckets = false;     // gradients of one rank go through buckets too, as between ranks
};

struct TrainingTimes {
  std::string model;
  int64_t parameters = 0;
  int64_t tensors = 0;
  int steps = 0;
  // By contender: seconds per step, one for each block, averaged over the ranks.
  //   alone        no communication: no rank waits for another
  //   alone_fused  the same with the step of the optimizer in one pass
  //   floor        alone, and an MPI_Barrier at the end of each step
  //   horon        DistributedOptimizer with FusedStep::Never
  //   horon_fused  DistributedOptimizer with FusedStep::WherePossible
  //   horon_sharded, horon_fused_sharded   the same two with shard_optimizer_state, if asked for
  //   horon_sharded_gradients, horon_fused_sharded_gradients   and with shard_gradients as well
  //   horon_shuffled, horon_shuffled_fixed   `horon` with the parameters in random order, with and
  //                without learn_bucket_order, if asked for
  //   local_sgd    LibTorch's step and LocalSgd, if asked for
  //   power_sgd    PowerSgd and LibTorch's step, if asked for
  //   gradients    allreduces as long as the first buckets of `horon`, without a step; on one rank,
  //                which has no buckets, only with TrainingPlan::buckets
  // On GPUs, and where HORON_AUTOTUNE is on, the contenders with a fused step are left out.
  std::map<std::string, std::vector<double>> seconds;
  // The same for the CPU time of all threads of a rank, which depends less on what else the machine
  // does. A rank that waits for other ranks may use CPU time too.
  std::map<std::string, std::vector<double>> cpu_seconds;
  double exposed_s = 0;      // seconds per step that the program waited for Horon's communication
  bool ranks_agree = false;  // after all steps of Horon the parameters are equal, bit by bit

  // Of each block: the time of one contender over that of the other.
  std::vector<double> ratios(const std::string& contender, const std::string& base) const;
  std::vector<double> cpu_ratios(const std::string& contender, const std::string& base) const;
  // For each block: which share of the time of the allreduces alone the steps hide. 1: all of it;
  // 0: a step takes as long as `floor` and `gradients` one after the other. Only if `gradients` was
  // timed.
  std::vector<double> hidden() const;
};

const std::vector<std::string>& training_optimizers();

// Collective. Throws Error.
TrainingTimes time_training(const std::string& model, const TrainingPlan& plan, MpiPeer& peer);

}  // namespace horon::bench
