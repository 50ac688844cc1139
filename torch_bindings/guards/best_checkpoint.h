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

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

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
  // and is not removed then. Ranks that come back from join() go on with the list of the ranks that
  // went on without them. Collective. Throws Error as collectives do; Mismatch if the ranks give
  // different steps or keep different ones; RankLeft as AgreeOn says.
  CheckpointDecision judge(int64_t step, double value);

  // The best first. Empty: nothing was worth it yet.
  const std::vector<Kept>& kept() const { return kept_; }
  // To go on after a restart: on all ranks.
  void set_kept(std::vector<Kept> kept) { kept_ = std::move(kept); }
  // The same for torch::save(), torch::load(), Checkpoints::add() and broadcast_state(). load()
  // throws Error(InvalidArgument), having changed nothing, for another archive.
  void save(::torch::serialize::OutputArchive& archive) const;
  void load(::torch::serialize::InputArchive& archive);

 private:
  const BestCheckpointOptions options_;
  torch_detail::Decisions decisions_;
  int64_t judged_ = 0;  // in which this rank has taken part, or whose list it has taken over
  std::vector<Kept> kept_;
};

::torch::serialize::OutputArchive& operator<<(::torch::serialize::OutputArchive& archive,
                                              const BestCheckpoint& best);
::torch::serialize::InputArchive& operator>>(::torch::serialize::InputArchive& archive,
                                             BestCheckpoint& best);

}  // namespace horon
