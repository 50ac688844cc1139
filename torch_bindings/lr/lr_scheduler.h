// Gives an optimizer's parameter groups their learning rates, step by step, after a schedule.
//
//   horon::LrScheduler scheduler(optimizer, horon::lr::cosine(total_steps));
//   ...
//   optimizer.step();
//   scheduler.step();
//   ...
//   torch::save(scheduler, "schedule.pt");   torch::load(scheduler, "schedule.pt");
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "horon/torch_bindings/lr/schedule.h"

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace horon {

struct LrSchedulerOptions {
  // Steps in one unit of the schedule. 1: its lengths are in steps. The number of steps in an
  // epoch: they are in epochs, and the learning rate goes on within an epoch too. (A scheduler
  // whose step() is called once an epoch counts epochs with 1.)
  int64_t steps_per_unit = 1;
  // The learning rate changes where a unit begins, and not within.
  bool whole_units = false;
  // The momentum of SGD, RMSprop and Lars, or beta1 of Adam, AdamW and Lamb: the value itself, for
  // all groups (lr::one_cycle_momentum). Empty: it stays as it is.
  std::optional<lr::Schedule> momentum = {};
};

// Each group's learning rate is its base times the schedule's factor. Its base is what the group
// had when the scheduler was made, or when the group was added to the optimizer. A group that is
// added has its base alone until the next step(); set_steps(steps()) gives it the factor at once.
// All of it is local, and the same on all ranks that do the same. One thread at a time.
//
// Momentum: LibTorch's SGD keeps u = m u + g and steps by lr u. So a change of lr takes effect on
// all of the momentum at once. Optimizers that keep v = m v + lr g need momentum correction for
// that (Goyal et al. 2017, section 3): they multiply v by lr_new / lr_old when lr changes. The
// paper of LARS has such a momentum, and our Lars corrects it (lars.h). So there is nothing to
// switch on here.
class LrScheduler {
 public:
  // The optimizer (of a DistributedOptimizer that holds another's: its optimizer()) outlives it.
  // Sets the learning rates of position 0. One schedule for all groups,
  // or one for each. Throws Error(InvalidArgument): null schedules, their number, an optimizer
  // without a learning rate or without the momentum that is asked for, and as step().
  LrScheduler(::torch::optim::Optimizer& optimizer, lr::Schedule schedule,
              LrSchedulerOptions options = {});
  LrScheduler(::torch::optim::Optimizer& optimizer, std::vector<lr::Schedule> schedules,
              LrSchedulerOptions options = {});

  // After each step of the optimizer: sets the learning rates of the next. Throws
  // Error(InvalidArgument) naming group and position where a schedule gives no number from 0 up;
  // then nothing has changed; and if an AdaScale sets the optimizer's learning rates. (A step that
  // loss scaling has left out is left out on all ranks: the program counts it or not.)
  void step();
  // Sets the learning rates that follow `steps` steps in all, from 0 up.
  void set_steps(int64_t steps);

  int64_t steps() const { return steps_; }
  // In units of the schedule.
  double position() const { return position_of(steps_); }
  // Of each group: as they are now, and before the schedule's factor.
  std::vector<double> learning_rates() const;
  std::vector<double> base_learning_rates() const;

  // One for each group, from 0 up. Throws as step(), having changed nothing.
  void set_base_learning_rates(std::vector<double> rates);
  // Multiplies them, for a training that goes on with a global batch of another size: load() brings
  // back what was right for the ranks of the job that saved. `factor`: from 0 up. Throws as step().
  void scale_base_learning_rates(double factor);

  // Steps and base learning rates; for torch::save() and torch::load(). The schedule is code: the
  // program gives the same one again, or another on purpose. Load the scheduler after the
  // optimizer, as Checkpoints does: the learning rates that are loaded last hold. If steps_per_unit
  // has changed, as it does with the number of ranks, load() goes on at the same position. Throws
  // Error(InvalidArgument), having changed nothing: another archive, another number of groups.
  void save(::torch::serialize::OutputArchive& archive) const;
  void load(::torch::serialize::InputArchive& archive);

 private:
  double position_of(int64_t steps) const;
  void adopt_groups();
  void apply(int64_t steps);

  ::torch::optim::Optimizer* optimizer_;
  std::vector<lr::Schedule> schedules_;
  LrSchedulerOptions options_;
  std::vector<double> base_;
  int64_t steps_ = 0;
};

::torch::serialize::OutputArchive& operator<<(::torch::serialize::OutputArchive& archive,
                                              const LrScheduler& scheduler);
::torch::serialize::InputArchive& operator>>(::torch::serialize::InputArchive& archive,
                                             LrScheduler& scheduler);

}  // namespace horon
