#include "horon/torch_bindings/lr/lr_scheduler.h"

#include <cmath>
#include <tuple>
#include <utility>

#include <ATen/ops/tensor.h>
#include <c10/util/Type.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/lr/ada_scale.h"
#include "horon/torch_bindings/lr/lamb.h"
#include "horon/torch_bindings/lr/lars.h"

namespace horon {
namespace {

namespace optim = ::torch::optim;

template <class... Values>
[[noreturn]] void refuse_scheduler(const Values&... values) {
  throw Error(ErrorCode::InvalidArgument, core::concat("LrScheduler: ", values...));
}

double lr_of(const optim::OptimizerOptions& options) {
  try {
    return options.get_lr();
  } catch (...) {
    refuse_scheduler("the optimizer's groups have no learning rate: ",
                     core::current_error().what());
  }
}

template <class Options>
bool set_plain_momentum(optim::OptimizerOptions& options, double value) {
  auto* const known = dynamic_cast<Options*>(&options);
  if (known != nullptr) known->momentum(value);
  return known != nullptr;
}

template <class Options>
bool set_first_beta(optim::OptimizerOptions& options, double value) {
  auto* const known = dynamic_cast<Options*>(&options);
  if (known != nullptr) known->betas(std::make_tuple(value, std::get<1>(known->betas())));
  return known != nullptr;
}

void set_momentum(optim::OptimizerOptions& options, double value) {
  const bool known = set_plain_momentum<optim::SGDOptions>(options, value) ||
                     set_plain_momentum<optim::RMSpropOptions>(options, value) ||
                     set_plain_momentum<LarsOptions>(options, value) ||
                     set_first_beta<optim::AdamOptions>(options, value) ||
                     set_first_beta<optim::AdamWOptions>(options, value) ||
                     set_first_beta<LambOptions>(options, value);
  if (known) return;
  refuse_scheduler("the momentum of ", c10::demangle(typeid(options).name()),
                   " is not known; leave LrSchedulerOptions::momentum empty");
}

}  // namespace

LrScheduler::LrScheduler(optim::Optimizer& optimizer, lr::Schedule schedule,
                         LrSchedulerOptions options)
    : LrScheduler(optimizer, std::vector<lr::Schedule>{std::move(schedule)}, std::move(options)) {}

LrScheduler::LrScheduler(optim::Optimizer& optimizer, std::vector<lr::Schedule> schedules,
                         LrSchedulerOptions options)
    : optimizer_(&optimizer), schedules_(std::move(schedules)), options_(std::move(options)) {
  for (const lr::Schedule& schedule : schedules_) {
    if (!schedule) refuse_scheduler("a schedule is null");
  }
  if (options_.momentum && !*options_.momentum)
    refuse_scheduler("the schedule of momentum is null");
  if (options_.steps_per_unit < 1) {
    refuse_scheduler("steps_per_unit is ", options_.steps_per_unit, "; give 1 or more");
  }
  apply(0);
}

double LrScheduler::position_of(int64_t steps) const {
  const double units = static_cast<double>(steps) / static_cast<double>(options_.steps_per_unit);
  return options_.whole_units ? std::floor(units) : units;
}

void LrScheduler::step() {
  if (torch_detail::has_ada_scale(*optimizer_)) {
    refuse_scheduler("an AdaScale sets the learning rates of this optimizer; give the AdaScale ",
                     "its schedule, and leave out the scheduler");
  }
  set_steps(steps_ + 1);
}

void LrScheduler::set_steps(int64_t steps) {
  if (steps < 0) refuse_scheduler("set_steps() got ", steps, "; give 0 or more");
  apply(steps);
  steps_ = steps;
}

void LrScheduler::adopt_groups() {
  const auto& groups = optimizer_->param_groups();
  if (schedules_.size() != 1 && schedules_.size() != groups.size()) {
    refuse_scheduler(schedules_.size(), " schedules for ", groups.size(),
                     " parameter groups; give one for all, or one for each");
  }
  base_ = base_learning_rates();
}

// Includes groups that have been added since the last step.
std::vector<double> LrScheduler::base_learning_rates() const {
  std::vector<double> bases = base_;
  const auto& groups = std::as_const(*optimizer_).param_groups();
  for (size_t group = bases.size(); group < groups.size(); ++group) {
    bases.push_back(lr_of(groups[group].options()));
  }
  return bases;
}

// All values are computed before one is set.
void LrScheduler::apply(int64_t steps) {
  adopt_groups();
  const double position = position_of(steps);
  const auto value_at = [&](const lr::Schedule& schedule, const auto&... what) {
    const double value = schedule(position);
    if (std::isfinite(value) && value >= 0) return value;
    refuse_scheduler("the schedule of ", what..., " gives ", value, " at position ", position,
                     "; it must give finite numbers of 0 or more");
  };
  std::vector<double> rates;
  for (size_t group = 0; group < base_.size(); ++group) {
    const lr::Schedule& schedule = schedules_[schedules_.size() == 1 ? 0 : group];
    rates.push_back(base_[group] * value_at(schedule, "group ", group));
  }
  std::optional<double> momentum;
  if (options_.momentum) momentum = value_at(*options_.momentum, "momentum");
  for (size_t group = 0; group < base_.size(); ++group) {
    optim::OptimizerOptions& options = optimizer_->param_groups()[group].options();
    if (momentum) set_momentum(options, *momentum);
    options.set_lr(rates[group]);
  }
}

void LrScheduler::set_base_learning_rates(std::vector<double> rates) {
  adopt_groups();
  if (rates.size() != base_.size()) {
    refuse_scheduler(rates.size(), " base learning rates for ", base_.size(), " parameter groups");
  }
  for (const double rate : rates) {
    if (std::isfinite(rate) && rate >= 0) continue;
    refuse_scheduler("a base learning rate is ", rate, "; give a finite number of 0 or more");
  }
  base_.swap(rates);
  try {
    apply(steps_);
  } catch (...) {
    base_.swap(rates);
    throw;
  }
}

void LrScheduler::scale_base_learning_rates(double factor) {
  if (!std::isfinite(factor) || factor < 0) {
    refuse_scheduler("the factor of base learning rates is ", factor,
                     "; give a finite number of 0 or more");
  }
  std::vector<double> rates = base_learning_rates();
  for (double& rate : rates) rate *= factor;
  set_base_learning_rates(std::move(rates));
}

std::vector<double> LrScheduler::learning_rates() const {
  std::vector<double> rates;
  for (const auto& group : std::as_const(*optimizer_).param_groups()) {
    rates.push_back(lr_of(group.options()));
  }
  return rates;
}

void LrScheduler::save(::torch::serialize::OutputArchive& archive) const {
  archive.write("steps", c10::IValue(steps_));
  archive.write("steps_per_unit", c10::IValue(options_.steps_per_unit));
  archive.write("base_learning_rates", at::tensor(base_learning_rates(), at::kDouble));
}

void LrScheduler::load(::torch::serialize::InputArchive& archive) {
  c10::IValue steps;
  c10::IValue steps_per_unit;
  at::Tensor base;
  if (!archive.try_read("steps", steps) || !archive.try_read("steps_per_unit", steps_per_unit) ||
      !archive.try_read("base_learning_rates", base) || !steps.isInt() || !steps_per_unit.isInt() ||
      base.scalar_type() != at::kDouble || base.dim() != 1 || steps.toInt() < 0 ||
      steps_per_unit.toInt() < 1) {
    refuse_scheduler("the archive holds no state of a scheduler");
  }
  if (base.size(0) != static_cast<int64_t>(optimizer_->param_groups().size())) {
    refuse_scheduler("the archive is from an optimizer with ", base.size(0),
                     " parameter groups, but this one has ", optimizer_->param_groups().size());
  }
  const at::Tensor values = base.cpu().contiguous();
  const auto* const first = values.const_data_ptr<double>();
  std::vector<double> before =
      std::exchange(base_, std::vector<double>(first, first + values.numel()));
  const double units =
      static_cast<double>(steps.toInt()) / static_cast<double>(steps_per_unit.toInt());
  try {
    set_steps(std::llround(units * static_cast<double>(options_.steps_per_unit)));
  } catch (...) {
    base_ = std::move(before);
    throw;
  }
}

::torch::serialize::OutputArchive& operator<<(::torch::serialize::OutputArchive& archive,
                                              const LrScheduler& scheduler) {
  scheduler.save(archive);
  return archive;
}

::torch::serialize::InputArchive& operator>>(::torch::serialize::InputArchive& archive,
                                             LrScheduler& scheduler) {
  scheduler.load(archive);
  return archive;
}

}  // namespace horon
