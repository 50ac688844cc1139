// Which checkpoints are worth keeping: a decision that is the same on all ranks. Writing and
// removing them is the program's.
//
//   horon::BestCheckpoint best({.better = horon::Better::Higher, .keep = 2});
//   const auto file = [](int64_t epoch) { return "epoch" + std::to_string(epoch) + ".pt"; };
//   const horon::CheckpointDecision decision = best.judge(epochs, scale);   // collective
//   try {
//     if (decision.save) horon::save0(model, file(epochs));
//     for (const int64_t step : decision.remove) {
//       horon::rank_zero_only([&] { std::remove(file(step).c_str()); });
//     }
//   } catch (const horon::Error&) {    // of save0(), on all ranks
//     best.forget(epochs);             // the files before are still the best ones
//     throw;                           // or go on without this checkpoint
//   }
#pragma once

#include <cstdint>
#include <optional>
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
  // went on without them. Collective. Throws Error as collectives do; Mismatch if the ranks have
  // different options, give different steps or keep different ones; RankLeft as AgreeOn says.
  CheckpointDecision judge(int64_t step, double value);

  // Takes the last judgement back, for a step that was to be saved and could not be: the list is
  // what it was before, so nothing is to be removed either. On all ranks. Throws
  // Error(InvalidArgument), having changed nothing, if the last judgement was not to save this
  // step.
  void forget(int64_t step);

  // The best first. Empty: nothing was worth it yet.
  const std::vector<Kept>& kept() const { return kept_; }
  // To go on after a restart: on all ranks.
  void set_kept(std::vector<Kept> kept);
  // The same for torch::save(), torch::load(), Checkpoints::add() and broadcast_state(). load()
  // throws Error(InvalidArgument), having changed nothing, for another archive.
  void save(::torch::serialize::OutputArchive& archive) const;
  void load(::torch::serialize::InputArchive& archive);

 private:
  const BestCheckpointOptions options_;
  torch_detail::Decisions decisions_;
  int64_t judged_ = 0;  // judgements whose outcome this rank has, made here or taken over
  std::vector<Kept> kept_;
  // Of the last judgement, if it was to save: the step, and the list before.
  std::optional<int64_t> saved_;
  std::vector<Kept> before_;
};

::torch::serialize::OutputArchive& operator<<(::torch::serialize::OutputArchive& archive,
                                              const BestCheckpoint& best);
::torch::serialize::InputArchive& operator>>(::torch::serialize::InputArchive& archive,
                                             BestCheckpoint& best);

}  // namespace horon
