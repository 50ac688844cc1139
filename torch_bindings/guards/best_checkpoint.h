// Which checkpoints are worth keeping: a decision that is the same on all ranks. Writing and
// removing them is the program's.
//
//   horon::BestCheckpoint best({.better = horon::Better::Higher, .keep = 2});
//   const horon::CheckpointDecision decision = best.judge(epochs, scale);   // collective
//   if (decision.save) horon::save0(model, "epoch" + std::to_string(epochs) + ".pt");
//   for (const int64_t step : decision.remove) {
//     horon::rank_zero_only([&] { std::remove(("epoch" + std::to_string(step) + ".pt").c_str());
//     });
//   }
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/guards/agreed_value.h"

namespace horon {

struct BestCheckpointOptions {
  std::string name = {};  // of its collectives; empty: "best_checkpoint.noname.N"
  AgreeOn agree_on = AgreeOn::FirstRank;
  ProcessSet process_set = {};
  Better better = Better::Lower;
  int64_t keep = 1;  // so many of the best
};

struct CheckpointDecision {
  bool save = false;                 // this one is among the best
  std::vector<int64_t> remove = {};  // steps that no longer are
};

// One thread at a time.
class BestCheckpoint {
 public:
  struct Kept {
    int64_t step = 0;
    double value = 0;  // agreed
  };

  // Throws Error(InvalidArgument).
  explicit BestCheckpoint(BestCheckpointOptions options = {});

  // Of equal values the earlier one stays; a NaN is never kept. A step that is kept
  // already (one that is made again after a restart) is saved again only if it has become better,
  // and is not removed then. Collective. Throws Error as collectives do; Mismatch if the ranks give
  // different steps.
  CheckpointDecision judge(int64_t step, double value);

  // The best first. Empty: nothing was worth it yet.
  const std::vector<Kept>& kept() const { return kept_; }
  // To go on after a restart.
  void set_kept(std::vector<Kept> kept) { kept_ = std::move(kept); }

 private:
  const BestCheckpointOptions options_;
  std::vector<Kept> kept_;
};

}  // namespace horon
