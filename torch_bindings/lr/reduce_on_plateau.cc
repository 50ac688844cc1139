#include "horon/torch_bindings/lr/reduce_on_plateau.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include <ATen/ops/tensor.h>
#include <torch/serialize/archive.h>

#include "horon/core/base/error.h"
#include "horon/core/base/parse_number.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/lr/ada_scale.h"
#include "horon/torch_bindings/lr/schedule.h"

namespace horon {
namespace {

using core::number_text;

template <class... Values>
[[noreturn]] void refuse_plateau(const Values&... values) {
  throw Error(ErrorCode::InvalidArgument, core::concat("ReduceLrOnPlateau: ", values...));
}

ReduceLrOnPlateauOptions checked(ReduceLrOnPlateauOptions options) {
  if (!(options.factor >= 0 && options.factor < 1)) {
    refuse_plateau("factor is ", options.factor, "; give one from 0 to below 1");
  }
  if (options.patience < 0) refuse_plateau("patience is ", options.patience, "; give 0 or more");
  if (options.cooldown < 0) refuse_plateau("cooldown is ", options.cooldown, "; give 0 or more");
  if (!std::isfinite(options.threshold) || options.threshold < 0) {
    refuse_plateau("threshold is ", options.threshold, "; give 0 or more");
  }
  const bool is_share = options.threshold_mode == ThresholdMode::Relative;
  if (is_share && options.better == Better::Lower && options.threshold >= 1) {
    refuse_plateau("threshold is ", options.threshold, " of the best value, but no value of 0 or ",
                   "more can be that much lower; give less than 1, or "
                   "ThresholdMode::Absolute");
  }
  if (options.min_lr.empty()) refuse_plateau("min_lr is empty; give one, or one for each group");
  for (const double least : options.min_lr) {
    if (!std::isfinite(least) || least < 0) {
      refuse_plateau("min_lr is ", least, "; give a finite number of 0 or more");
    }
  }
  return options;
}

std::string shown(const ReduceLrOnPlateauOptions& options) {
  const bool is_share = options.threshold_mode == ThresholdMode::Relative;
  std::string text = core::concat(
      "better ", torch_detail::name_of(options.better), ", factor ", number_text(options.factor),
      ", patience ", options.patience, ", threshold ", number_text(options.threshold),
      is_share ? " (Relative)" : " (Absolute)", ", cooldown ", options.cooldown, ", min_lr");
  for (const double least : options.min_lr) text += " " + number_text(least);
  return text;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double worst(Better better) { return better == Better::Lower ? kInfinity : -kInfinity; }

// What the ranks compare, and what one that comes back from join() takes over.
template <class State>
std::string to_bytes(const State& state, const std::vector<double>& rates) {
  static_assert(std::is_trivially_copyable_v<State> && sizeof(State) == 32, "without padding");
  std::string bytes(reinterpret_cast<const char*>(&state), sizeof(State));
  return bytes.append(reinterpret_cast<const char*>(rates.data()), rates.size() * sizeof(double));
}

template <class State>
std::vector<double> take_state(State& state, const std::string& bytes) {
  std::memcpy(&state, bytes.data(), sizeof(State));
  std::vector<double> rates((bytes.size() - sizeof(State)) / sizeof(double));
  std::memcpy(rates.data(), bytes.data() + sizeof(State), bytes.size() - sizeof(State));
  return rates;
}

}  // namespace

ReduceLrOnPlateau::ReduceLrOnPlateau(::torch::optim::Optimizer& optimizer,
                                     ReduceLrOnPlateauOptions options)
    : optimizer_(&optimizer),
      options_(checked(std::move(options))),
      decisions_("plateau", options_.name, options_.agree_on, options_.process_set,
                 shown(options_)),
      state_{.best = worst(options_.better)} {
  require_no_ada_scale();
  require_min_lr_for(rates().size());
}

ReduceLrOnPlateau::ReduceLrOnPlateau(AdaScale& ada_scale, ReduceLrOnPlateauOptions options)
    : ReduceLrOnPlateau(*ada_scale.scheduler_, std::move(options)) {}

ReduceLrOnPlateau::ReduceLrOnPlateau(LrScheduler& scheduler, ReduceLrOnPlateauOptions options)
    : scheduler_(&scheduler),
      options_(checked(std::move(options))),
      decisions_("plateau", options_.name, options_.agree_on, options_.process_set,
                 shown(options_)),
      state_{.best = worst(options_.better)} {
  require_min_lr_for(rates().size());
}

void ReduceLrOnPlateau::require_min_lr_for(size_t groups) const {
  if (options_.min_lr.size() == 1 || options_.min_lr.size() == groups) return;
  refuse_plateau("min_lr has ", options_.min_lr.size(), " numbers for ", groups,
                 " parameter groups; give one for all, or one for each");
}

// It would set the learning rates again in its next step, from its own.
void ReduceLrOnPlateau::require_no_ada_scale() const {
  if (optimizer_ == nullptr || !torch_detail::has_ada_scale(*optimizer_)) return;
  refuse_plateau("an AdaScale sets the learning rates of this optimizer; give the AdaScale in ",
                 "the place of the optimizer");
}

std::vector<double> ReduceLrOnPlateau::rates() const {
  if (scheduler_ != nullptr) return scheduler_->base_learning_rates();
  return LrScheduler(*optimizer_, lr::constant()).base_learning_rates();
}

void ReduceLrOnPlateau::set_rates(const std::vector<double>& rates) {
  if (scheduler_ != nullptr) {
    scheduler_->set_base_learning_rates(rates);
  } else {
    LrScheduler(*optimizer_, lr::constant()).set_base_learning_rates(rates);
  }
}

bool ReduceLrOnPlateau::step(double value) {
  require_no_ada_scale();
  const std::vector<double> before = rates();
  const torch_detail::AgreedDecision decision =
      decisions_.agree({.value = value, .count = state_.checks, .state = to_bytes(state_, before)});
  State next;
  std::vector<double> agreed_rates = take_state(next, decision.state);
  require_min_lr_for(agreed_rates.size());  // on all ranks, as they have the same
  ++next.checks;
  if (is_improvement(decision.value, next.best)) {
    next.best = decision.value;
    next.bad_checks = 0;
  } else {
    ++next.bad_checks;
  }
  if (next.cooldown_left > 0) {
    --next.cooldown_left;
    next.bad_checks = 0;
  }
  bool lowered = false;
  if (next.bad_checks > options_.patience) {
    lowered = lower(agreed_rates);
    next.cooldown_left = options_.cooldown;
    next.bad_checks = 0;
  }
  if (agreed_rates != before) set_rates(agreed_rates);
  state_ = next;
  return lowered;
}

bool ReduceLrOnPlateau::is_improvement(double value, double best) const {
  const double by = options_.threshold;
  if (options_.threshold_mode == ThresholdMode::Absolute) {
    return torch_detail::is_better(value, best, options_.better, by);
  }
  const double share = options_.better == Better::Lower ? 1 - by : 1 + by;
  return torch_detail::is_better(value, best * share, options_.better);
}

bool ReduceLrOnPlateau::lower(std::vector<double>& rates) const {
  bool lowered = false;
  for (size_t group = 0; group < rates.size(); ++group) {
    const double least = options_.min_lr[options_.min_lr.size() == 1 ? 0 : group];
    const double rate = std::max(rates[group] * options_.factor, least);
    if (rate >= rates[group]) continue;  // below its min_lr already
    rates[group] = rate;
    lowered = true;
  }
  return lowered;
}

void ReduceLrOnPlateau::save(::torch::serialize::OutputArchive& archive) const {
  archive.write("checks", c10::IValue(state_.checks));
  archive.write("best", c10::IValue(state_.best));
  archive.write("bad_checks", c10::IValue(state_.bad_checks));
  archive.write("cooldown_left", c10::IValue(state_.cooldown_left));
  archive.write("learning_rates", at::tensor(rates(), at::kDouble));
}

void ReduceLrOnPlateau::load(::torch::serialize::InputArchive& archive) {
  c10::IValue checks, best, bad_checks, cooldown_left;
  at::Tensor rates;
  if (!archive.try_read("checks", checks) || !archive.try_read("best", best) ||
      !archive.try_read("bad_checks", bad_checks) ||
      !archive.try_read("cooldown_left", cooldown_left) ||
      !archive.try_read("learning_rates", rates) || !checks.isInt() || !best.isDouble() ||
      std::isnan(best.toDouble()) || !bad_checks.isInt() || !cooldown_left.isInt() ||
      rates.scalar_type() != at::kDouble || rates.dim() != 1) {
    refuse_plateau("the archive holds no state of a ReduceLrOnPlateau");
  }
  const at::Tensor values = rates.cpu().contiguous();
  const auto* const first = values.const_data_ptr<double>();
  set_rates({first, first + values.numel()});
  state_ = {.checks = checks.toInt(),
            .best = best.toDouble(),
            .bad_checks = bad_checks.toInt(),
            .cooldown_left = cooldown_left.toInt()};
}

::torch::serialize::OutputArchive& operator<<(::torch::serialize::OutputArchive& archive,
                                              const ReduceLrOnPlateau& plateau) {
  plateau.save(archive);
  return archive;
}

::torch::serialize::InputArchive& operator>>(::torch::serialize::InputArchive& archive,
                                             ReduceLrOnPlateau& plateau) {
  plateau.load(archive);
  return archive;
}

}  // namespace horon
