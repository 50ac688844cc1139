// Stops training on all ranks in the same epoch.
//
//   horon::EarlyStopping stopping({.patience = 5});
//   for (int epoch = 0; epoch < epochs; ++epoch) {
//     ...
//     if (stopping.check(seconds)) break;          // collective
//   }
//   horon::print0("stopped: ", stopping.reason());
//
// A rank that stops by its own number leaves the others waiting in their next collective. So the
// ranks agree on one number (AgreeOn), from which each of them draws the same conclusion.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/guards/agreed_value.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace horon {

struct EarlyStoppingOptions {
  std::string name = {};  // of its collectives; empty: "early_stopping.noname.N"
  AgreeOn agree_on = AgreeOn::FirstRank;
  ProcessSet process_set = {};
  Better better = Better::Lower;
  int64_t patience = 3;  // stops at so many checks in a row without an improvement
  double min_delta = 0;  // a smaller change is no improvement; from 0
  std::optional<double> good_enough = {};  // stops when the value is as good as that
  bool stop_at_nonfinite = true;           // NaN or an infinity: training has diverged
};

// One thread at a time.
class EarlyStopping {
 public:
  // Throws Error(InvalidArgument).
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  // Returns whether training is to end: the same on all ranks, and true for ever once it was true.
  // Collective. Ranks that come back from join() go on with the state of the ranks that went on
  // without them. Throws Error as collectives do; Mismatch if the ranks have other options, have
  // checked unequally often or have other states; RankLeft as AgreeOn says.
  bool check(double value);

  // What is needed to go on after a restart.
  struct State {
    int64_t checks = 0;
    double best = std::numeric_limits<double>::quiet_NaN();  // agreed; NaN: none yet
    int64_t best_check = 0;                                  // counted from 1; 0: none yet
    std::string reason = {};                                 // empty: it goes on
  };
  const State& state() const { return state_; }
  void set_state(State state) { state_ = std::move(state); }
  // The same for torch::save(), torch::load(), Checkpoints::add() and broadcast_state(). load()
  // throws Error(InvalidArgument), having changed nothing, for another archive.
  void save(::torch::serialize::OutputArchive& archive) const;
  void load(::torch::serialize::InputArchive& archive);

  double best() const { return state_.best; }
  // Was the latest value the best so far?
  bool improved() const { return state_.checks > 0 && state_.best_check == state_.checks; }
  // "no improvement in 5 checks; the best was 0.25 in check 7"; empty: it goes on.
  const std::string& reason() const { return state_.reason; }

 private:
  std::string reason_for(double value) const;

  const EarlyStoppingOptions options_;
  torch_detail::Decisions decisions_;
  State state_;
};

::torch::serialize::OutputArchive& operator<<(::torch::serialize::OutputArchive& archive,
                                              const EarlyStopping& stopping);
::torch::serialize::InputArchive& operator>>(::torch::serialize::InputArchive& archive,
                                             EarlyStopping& stopping);

}  // namespace horon
