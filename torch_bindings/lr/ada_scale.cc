#include "horon/torch_bindings/lr/ada_scale.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/serialize/archive.h>

#include "horon/core/base/error.h"
#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/gradients/gradient_norm.h"
#include "horon/torch_bindings/lr/scaling.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon {
namespace {

constexpr int64_t kPatience = 20;  // steps that can't be measured, until a warning

template <class... Values>
[[noreturn]] void refuse_ada_scale(const Values&... values) {
  throw Error(ErrorCode::InvalidArgument, core::concat("AdaScale: ", values...));
}

// A scalar in float64 on the tensor's device, for which the host does not wait.
at::Tensor squares_on_device(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return at::scalar_tensor(torch_detail::sum_of_squares(tensor), at::kDouble);
  return torch_detail::norm_on_device({tensor}).square_();
}

double take_sum(std::map<int64_t, at::Tensor>& scalars) {
  at::Tensor sum;
  for (const auto& [bucket, scalar] : std::exchange(scalars, {})) {
    if (sum.defined()) {
      sum.add_(scalar);
    } else {
      sum = scalar;
    }
  }
  return sum.defined() ? sum.item<double>() : 0;
}

void check_options(const AdaScaleOptions& options, ReduceOp op) {
  if (op != ReduceOp::Average && op != ReduceOp::Sum) {
    refuse_ada_scale("it needs op Average or Sum, but op is ", to_string(op));
  }
  if (options.batches.value_or(1) < 1)
    refuse_ada_scale("batches is ", *options.batches, "; give 1 or more");
  const double smoothing = options.smoothing.value_or(0);
  if (!(smoothing >= 0 && smoothing < 1)) {
    refuse_ada_scale("smoothing is ", smoothing, "; give one from 0 to below 1");
  }
  if (options.steps_per_unit < 1) {
    refuse_ada_scale("steps_per_unit is ", options.steps_per_unit, "; give 1 or more");
  }
}

struct Claims {
  std::mutex mutex;
  std::set<const ::torch::optim::Optimizer*> optimizers;
};

std::shared_ptr<Claims> all_claims() {
  static const auto claims = std::make_shared<Claims>();
  return claims;
}

// Two AdaScales of one optimizer would set the learning rates in turn, and both would be wrong.
std::shared_ptr<void> claim(const ::torch::optim::Optimizer* optimizer) {
  std::shared_ptr<Claims> claims = all_claims();
  const std::lock_guard lock(claims->mutex);
  if (!claims->optimizers.insert(optimizer).second) {
    refuse_ada_scale("this optimizer has one already; destroy that one first");
  }
  return {nullptr, [held = claims, optimizer](std::nullptr_t) {
            const std::lock_guard guard(held->mutex);
            held->optimizers.erase(optimizer);
          }};
}

}  // namespace

bool torch_detail::has_ada_scale(const ::torch::optim::Optimizer& optimizer) {
  const std::shared_ptr<Claims> claims = all_claims();
  const std::lock_guard lock(claims->mutex);
  return claims->optimizers.contains(&optimizer);
}

AdaScale::AdaScale(Parts parts, lr::Schedule schedule, AdaScaleOptions options)
    : parts_(std::move(parts)),
      only_one_(claim(parts_.optimizer)),
      schedule_(std::move(schedule)),
      options_(std::move(options)) {
  check_options(options_, parts_.gradients().op);
  if (!schedule_) refuse_ada_scale("the schedule is null");
  const ProcessSet& set = parts_.gradients().process_set;
  alone_ = !set.includes_me() || set.size() == 1;
  if (parts_.gradients().shard_gradients && !alone_) {
    refuse_ada_scale(
        "shard_gradients gives each rank only some of the reduced gradients, but the gain ",
        "needs all; leave out shard_gradients");
  }
  options_.name = torch_detail::given_or_counted_object(options_.name, "ada_scale", set.id());
  state_.ranks = alone_ ? 1 : set.size();
  // The scheduler sets learning rates; the position is not a number of its steps but state_'s.
  scheduler_.emplace(*parts_.optimizer, [this](double /*position*/) {
    const double units = state_.position / static_cast<double>(options_.steps_per_unit);
    return schedule_(units) * state_.gain /
           torch_detail::grown_by_sums(parts_.gradients(), state_.ranks);
  });
  seen_ = parts_.statistics();
  if (alone_) return;
  parts_.scaling->on_submitted([this](const BucketView& bucket) {
    const torch_detail::PlainMode plain;
    of_buckets_[bucket.index] = squares_on_device(bucket.flat);
  });
  parts_.scaling->on_reduced([this](const BucketView& bucket) {
    const torch_detail::PlainMode plain;
    of_reduced_[bucket.index] = squares_on_device(bucket.flat);
  });
}

AdaScale::~AdaScale() {
  if (alone_) return;
  parts_.scaling->on_submitted(nullptr);
  parts_.scaling->on_reduced(nullptr);
}

double AdaScale::batches() const {
  return options_.batches.value_or(parts_.gradients().backward_passes_per_step);
}

double AdaScale::scale() const {
  const int ranks = alone_ ? 1 : parts_.gradients().process_set.size();
  return ranks * batches();
}

// Before the step, when all gradients are reduced.
AdaScale::Sums AdaScale::own_sums() {
  const GradientStatistics now = parts_.statistics();
  const bool usable = now.steps == seen_.steps + 1 && now.late_parts == seen_.late_parts;
  seen_ = now;
  for (const auto& group : std::as_const(*parts_.optimizer).param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined() || gradient.layout() == at::kStrided) continue;
      refuse_ada_scale("the gradient of a parameter of shape ", core::shape_text(parameter.sizes()),
                       " stays sparse; leave GradientReducerOptions::sparse_as_dense on");
    }
  }
  const double local = take_sum(of_buckets_);
  const double reduced = take_sum(of_reduced_);
  // Buckets hold sums over a rank's passes, times the loss scale, of which a GradScaler may have
  // taken its part out of the gradients since. Both sums are converted to those of the means,
  // without the loss scale.
  const GradientReducerOptions& gradients = parts_.gradients();
  const double scale = parts_.scaling->grad_scale() * parts_.scaling->unscaled_by().value_or(1);
  const double grown = scale * gradients.backward_passes_per_step;
  const double divided =
      gradients.average_aggregated_gradients ? gradients.backward_passes_per_step : 1;
  // All ranks must learn of values that are not finite; with HORON_CHECK_FINITE an allreduce of
  // them would fail instead.
  if (!std::isfinite(local) || !std::isfinite(reduced)) return {.ranks = 1, .unusable = 1};
  return {.ranks = 1,
          .unusable = usable ? 0.0 : 1.0,
          .local = local / (grown * grown),
          .reduced = reduced / (grown * grown) * (divided * divided)};
}

AdaScale::Sums AdaScale::sums_of_ranks(const Sums& own) const {
  at::Tensor numbers = at::empty({4}, at::kDouble);
  auto* const values = numbers.mutable_data_ptr<double>();
  values[0] = own.ranks;
  values[1] = own.unusable;
  values[2] = own.local;
  values[3] = own.reduced;
  allreduce_(
      numbers,
      {.name = options_.name, .op = ReduceOp::Sum, .process_set = parts_.gradients().process_set});
  return {values[0], values[1], values[2], values[3]};
}

// The mean over N ranks of gradients with variance v' has variance v' / N; v' is that of the mean
// over a rank's batches.
void AdaScale::learn(const Sums& sums) {
  const double ranks = sums.ranks;  // others may have joined
  state_.ranks = ranks;
  const bool usable =
      sums.unusable == 0 && ranks > 1 && std::isfinite(sums.local) && std::isfinite(sums.reduced);
  state_.unmeasured = usable || ranks == 1 ? 0 : state_.unmeasured + 1;
  if (usable) {
    const double summed = parts_.gradients().op == ReduceOp::Sum ? ranks : 1;
    const double mean = sums.reduced / ranks / (summed * summed);  // all ranks have the same
    const double of_rank = (sums.local - ranks * mean) / (ranks - 1);
    const double keep = options_.smoothing.value_or(std::max(0.0, 1 - scale() / 1000));
    state_.weight = keep * state_.weight + (1 - keep);
    const double share = (1 - keep) / state_.weight;
    state_.variance += share * (of_rank * batches() - state_.variance);
    state_.squared_mean += share * (mean - of_rank / ranks - state_.squared_mean);
  }
  // Both are estimates, which may come out below 0.
  const double noise = std::max(0.0, state_.variance);
  const double signal = std::max(0.0, state_.squared_mean);
  const double all = noise / (ranks * batches()) + signal;
  state_.gain = all > 0 ? (noise + signal) / all : 1;
}

void AdaScale::warn_of_unmeasured_steps() const {
  if (parts_.gradients().process_set.rank() != 0) return;
  core::log(core::LogLevel::Warn,
            core::concat("AdaScale \"", options_.name, "\": in none of the last ", kPatience,
                         " steps could the gradients be measured (they come after their bucket, ",
                         "in several reductions, or are NaN); the gain stays ", state_.gain));
}

void AdaScale::step() {
  parts_.scaling->synchronize_for_step();
  if (parts_.scaling->unscaled_by()) {
    refuse_ada_scale("a GradScaler has divided these gradients; instead of ada_scale.step() ",
                     "call scaler.step(ada_scale), which skips steps with NaN or Inf");
  }
  make_step();
}

void AdaScale::forget_round() {
  seen_ = parts_.statistics();
  of_buckets_.clear();
  of_reduced_.clear();
}

void AdaScale::make_step() {
  parts_.scaling->synchronize_for_step();
  const State state_before = state_;
  const int64_t before = scheduler_->steps();
  try {
    if (alone_) {
      state_.gain = 1;
    } else {
      const torch_detail::PlainMode plain;
      learn(sums_of_ranks(own_sums()));
    }
    scheduler_->set_steps(before + 1);
    parts_.step();
  } catch (...) {
    state_ = state_before;
    if (scheduler_->steps() != before) scheduler_->set_steps(before);
    throw;
  }
  if (parts_.scaling->step_skipped()) {
    state_ = state_before;
    scheduler_->set_steps(before);
  } else {
    state_.position += state_.gain;
    if (state_.unmeasured == kPatience) warn_of_unmeasured_steps();
  }
}

void AdaScale::save(::torch::serialize::OutputArchive& archive) const {
  archive.write("position", c10::IValue(state_.position));
  archive.write("gain", c10::IValue(state_.gain));
  archive.write("variance", c10::IValue(state_.variance));
  archive.write("squared_mean", c10::IValue(state_.squared_mean));
  archive.write("weight", c10::IValue(state_.weight));
  ::torch::serialize::OutputArchive of_scheduler;
  scheduler_->save(of_scheduler);
  archive.write("scheduler", of_scheduler);
}

void AdaScale::load(::torch::serialize::InputArchive& archive) {
  const auto number = [&](const char* name) {
    c10::IValue value;
    if (!archive.try_read(name, value) || !value.isDouble()) {
      refuse_ada_scale("the archive holds no state of an AdaScale (no number \"", name, "\")");
    }
    return value.toDouble();
  };
  const State loaded{number("position"),     number("gain"),   number("variance"),
                     number("squared_mean"), number("weight"), state_.ranks};
  ::torch::serialize::InputArchive of_scheduler;
  if (!archive.try_read("scheduler", of_scheduler)) {
    refuse_ada_scale("the archive holds no state of an AdaScale (no scheduler)");
  }
  const State before = std::exchange(state_, loaded);
  try {
    scheduler_->load(of_scheduler);
  } catch (...) {
    state_ = before;
    throw;
  }
}

::torch::serialize::OutputArchive& operator<<(::torch::serialize::OutputArchive& archive,
                                              const AdaScale& ada_scale) {
  ada_scale.save(archive);
  return archive;
}

::torch::serialize::InputArchive& operator>>(::torch::serialize::InputArchive& archive,
                                             AdaScale& ada_scale) {
  ada_scale.load(archive);
  return archive;
}

}  // namespace horon
