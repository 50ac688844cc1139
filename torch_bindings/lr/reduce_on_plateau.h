// Lowers the learning rate once a value no longer improves, on all ranks in the same check.
//
//   horon::ReduceLrOnPlateau plateau(optimizer, {.patience = 5});
//   for (int epoch = 0; epoch < epochs; ++epoch) {
//     ...
//     plateau.step(validation_loss);                 // collective
//   }
//
// A rank that went by its own value would soon step with another learning rate than the others. So
// the ranks agree on one number (AgreeOn), from which each of them draws the same conclusion. The
// rule is that of torch.optim.lr_scheduler.ReduceLROnPlateau, without its eps.
//
// Together with a schedule, such as a warm-up, it lowers the base learning rates, which the
// schedule multiplies:
//
//   horon::LrScheduler scheduler(optimizer, horon::lr::warm_up(500, 0.1));
//   horon::ReduceLrOnPlateau plateau(scheduler);
//
// An AdaScale, which has a schedule too, is given in the place of its optimizer likewise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/guards/agreed_value.h"
#include "horon/torch_bindings/lr/lr_scheduler.h"

namespace horon {

class AdaScale;

enum class ThresholdMode : uint8_t {
  Relative,  // a share of the best value; for values from 0 up
  Absolute,
};

struct ReduceLrOnPlateauOptions {
  std::string name = {};  // of its collectives; empty: "plateau.noname.N"
  AgreeOn agree_on = AgreeOn::Mean;
  ProcessSet process_set = {};
  Better better = Better::Lower;
  double factor = 0.1;      // what the learning rates are multiplied by; from 0 to below 1
  int64_t patience = 10;    // so many checks in a row may bring no improvement; one more lowers
  double threshold = 1e-4;  // a smaller change is no improvement; from 0
  ThresholdMode threshold_mode = ThresholdMode::Relative;
  int64_t cooldown = 0;              // so many checks behind a reduction don't count
  std::vector<double> min_lr = {0};  // one for all groups, or one for each
};

// One thread at a time.
class ReduceLrOnPlateau {
 public:
  // The optimizer, the scheduler or the AdaScale outlives it. With the optimizer alone it lowers
  // the learning rates that the groups have then; no LrScheduler may set them too. Throws
  // Error(InvalidArgument): an option out of its range, an optimizer without a learning rate, or
  // with an AdaScale (step() throws then too).
  explicit ReduceLrOnPlateau(::torch::optim::Optimizer& optimizer,
                             ReduceLrOnPlateauOptions options = {});
  explicit ReduceLrOnPlateau(LrScheduler& scheduler, ReduceLrOnPlateauOptions options = {});
  explicit ReduceLrOnPlateau(AdaScale& ada_scale, ReduceLrOnPlateauOptions options = {});

  // Call it after each evaluation. Returns whether it has lowered a learning rate, the same on all
  // ranks. A NaN is no improvement. Collective. Ranks that come back from join() go on with the
  // state and the learning rates of the ranks that went on without them. Throws Error as
  // collectives do, and as LrScheduler::step() does; Mismatch if the ranks have other options, have
  // checked unequally often, or have another state or other learning rates; RankLeft as AgreeOn
  // says; InvalidArgument if min_lr is not one for each group. After an error it is as if it had
  // not been called.
  bool step(double value);

  // The best agreed value; without one an infinity, which every value is better than.
  double best() const { return state_.best; }
  // How often step() was called.
  int64_t checks() const { return state_.checks; }

  // For torch::save(), torch::load(), Checkpoints::add() and broadcast_state(). The learning rates
  // (with a scheduler the base ones) are part of it. load() throws Error(InvalidArgument), having
  // changed nothing: another archive, another number of groups.
  void save(::torch::serialize::OutputArchive& archive) const;
  void load(::torch::serialize::InputArchive& archive);

 private:
  struct State {
    int64_t checks = 0;
    double best = 0;
    int64_t bad_checks = 0;     // in a row
    int64_t cooldown_left = 0;  // checks
  };

  void require_min_lr_for(size_t groups) const;
  void require_no_ada_scale() const;
  bool is_improvement(double value, double best) const;
  bool lower(std::vector<double>& rates) const;
  std::vector<double> rates() const;
  void set_rates(const std::vector<double>& rates);

  ::torch::optim::Optimizer* optimizer_ = nullptr;
  LrScheduler* scheduler_ = nullptr;  // null: the optimizer's learning rates themselves
  const ReduceLrOnPlateauOptions options_;
  torch_detail::Decisions decisions_;
  State state_;
};

::torch::serialize::OutputArchive& operator<<(::torch::serialize::OutputArchive& archive,
                                              const ReduceLrOnPlateau& plateau);
::torch::serialize::InputArchive& operator>>(::torch::serialize::InputArchive& archive,
                                             ReduceLrOnPlateau& plateau);

}  // namespace horon
