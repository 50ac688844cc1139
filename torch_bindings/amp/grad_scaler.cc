#include "horon/torch_bindings/amp/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_set>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/gradients/scaled_steps.h"
#include "horon/torch_bindings/lr/ada_scale.h"
#include "horon/torch_bindings/tensors/collective_step.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/stream_order.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::amp {
namespace {

template <class... Values>
[[noreturn]] void refuse_scaling(const Values&... values) {
  throw Error(ErrorCode::InvalidArgument, core::concat("GradScaler: ", values...));
}

constexpr auto kScaleRange = "1.2e-38 to 3.4e38 (float32)";

void check_options(const GradScalerOptions& options) {
  const auto check = [](bool right, const char* option, double value, const char* range) {
    if (!right) refuse_scaling(option, " is ", value, "; give ", range);
  };
  const auto scale = static_cast<float>(options.init_scale);
  check(std::isnormal(scale) && scale > 0, "init_scale", options.init_scale, kScaleRange);
  check(std::isfinite(options.growth_factor) && options.growth_factor > 1, "growth_factor",
        options.growth_factor, "a number above 1");
  check(options.backoff_factor > 0 && options.backoff_factor < 1, "backoff_factor",
        options.backoff_factor, "a number above 0 and below 1");
  check(options.growth_interval > 0, "growth_interval",
        static_cast<double>(options.growth_interval), "1 or more");
}

// While it lives, the steps of an optimizer divide by the scale too, and are left out if a gradient
// is not finite.
class ScaledStep {
 public:
  ScaledStep(torch_detail::ScaledSteps& steps, double scale)
      : steps_(steps), outer_scale_(steps.grad_scale()), outer_skips_(steps.skip_nonfinite()) {
    steps_.set_grad_scale(outer_scale_ * scale);
    steps_.set_skip_nonfinite(true);
  }
  ~ScaledStep() {
    steps_.set_skip_nonfinite(outer_skips_);
    steps_.set_grad_scale(outer_scale_);
  }
  ScaledStep(const ScaledStep&) = delete;
  ScaledStep& operator=(const ScaledStep&) = delete;

 private:
  torch_detail::ScaledSteps& steps_;
  double outer_scale_;
  bool outer_skips_;
};

using Kind = std::pair<std::pair<at::DeviceType, at::DeviceIndex>, at::ScalarType>;

void refuse_float16(const ::torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.scalar_type() != at::kHalf || !parameter.requires_grad()) continue;
      refuse_scaling("a parameter of shape ", core::shape_text(parameter.sizes()),
                     " is float16, whose range can't hold its gradient divided by the scale; keep ",
                     "parameters in float32 and compute in an Autocast scope");
    }
  }
}

// The numbers of a tensor as the kernels know them, in its memory. (For a lazy conjugate the memory
// holds the values before conjugation, which are as finite and as far from 0.)
at::Tensor real_numbers(const at::Tensor& values) {
  return values.is_complex() ? torch_detail::real_memory(values) : values;
}

// Each gradient once, also where its parameter is listed twice. The kernels take those of one
// device and dtype together.
std::map<Kind, std::vector<at::Tensor>> gradients_of(::torch::optim::Optimizer& optimizer) {
  std::map<Kind, std::vector<at::Tensor>> result;
  std::unordered_set<const void*> seen;
  for (const auto& group : std::as_const(optimizer).param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      const at::Tensor values =
          real_numbers(gradient.layout() == at::kStrided ? gradient : gradient._values());
      const at::Device device = values.device();
      result[{{device.type(), device.index()}, values.scalar_type()}].push_back(values);
    }
  }
  return result;
}

// The rule of LibTorch's _amp_update_scale_, with its roundings.
void grow_or_shrink(bool found, const GradScalerOptions& options, float& scale, int64_t& tracker) {
  if (found) {
    scale = static_cast<float>(scale * options.backoff_factor);
    // Even if no scale gives finite gradients, it stays a number to divide by.
    scale = std::max(scale, std::numeric_limits<float>::min());
    tracker = 0;
    return;
  }
  if (++tracker < options.growth_interval) return;
  tracker = 0;
  const auto grown = static_cast<float>(scale * options.growth_factor);
  if (std::isfinite(grown)) scale = grown;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), scale_(static_cast<float>(options.init_scale)) {
  check_options(options);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) return loss;
  if (torch_detail::current_stream_is_captured(loss.device())) {
    refuse_scaling(
        "scale() can't be captured in a CUDA graph, which would freeze the scale; "
        "train in bfloat16, or without a graph");
  }
  return loss.mul(static_cast<double>(scale_));
}

void GradScaler::unscale(Optimizer& optimizer, torch_detail::ScaledSteps* distributed) {
  if (!options_.enabled) return;
  Record& record = records_[&optimizer];
  if (record.stage == Stage::Unscaled) {
    refuse_scaling("unscale_() was called already for this optimizer since the last update()");
  }
  if (record.stage == Stage::Stepped) {
    refuse_scaling("unscale_() was called after step(); call update() first");
  }
  refuse_float16(optimizer);
  if (distributed != nullptr) distributed->synchronize_for_step();
  const torch_detail::PlainMode plain;
  const auto gradients = gradients_of(optimizer);
  // Versions of gradients stay as they are, as when step() divides them.
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto inverse = static_cast<float>(1 / static_cast<double>(scale_));
  for (const auto& [kind, values] : gradients) {
    const auto options = values.front().options().dtype(at::kFloat).layout(at::kStrided);
    at::Tensor found = at::full({1}, 0, options);
    at::_amp_foreach_non_finite_check_and_unscale_(values, found, at::full({1}, inverse, options));
    record.found_on.push_back(found);
  }
  record.stage = Stage::Unscaled;
  if (distributed == nullptr) return;
  distributed->note_unscaled(scale_);
  const auto found = distributed->found_by_owners([&] { return found_in(record); });
  if (found) record.found = *found;
}

GradScaler::Record& GradScaler::record_for_step(const Optimizer& optimizer) {
  Record& record = records_[&optimizer];
  if (record.stage != Stage::Stepped) return record;
  refuse_scaling("step() was called already for this optimizer since the last update()");
}

bool GradScaler::found_in(Record& record) {
  for (const at::Tensor& found : std::exchange(record.found_on, {})) {
    record.found = found.item<float>() != 0 || record.found;
  }
  return record.found;
}

template <class MakeStep>
bool GradScaler::step_by(const MakeStep& make_step, Optimizer& inner,
                         torch_detail::ScaledSteps* distributed) {
  if (!options_.enabled) {
    make_step();
    return true;
  }
  Record& record = record_for_step(inner);
  if (distributed != nullptr && record.stage == Stage::Ready) {
    refuse_float16(inner);
    const ScaledStep scaled(*distributed, scale_);
    make_step();
    record.found = distributed->step_skipped();
  } else {
    if (record.stage == Stage::Ready) unscale(inner, nullptr);
    if (!found_in(record)) {
      make_step();
    } else if (distributed != nullptr) {
      distributed->leave_out();
    } else if (auto* const step = dynamic_cast<torch_detail::CollectiveStep*>(&inner)) {
      step->move_by_others();
    }
  }
  record.stage = Stage::Stepped;
  return !record.found;
}

void GradScaler::unscale_(Optimizer& optimizer) {
  unscale(optimizer, dynamic_cast<torch_detail::ScaledSteps*>(&optimizer));
}
void GradScaler::unscale_(DistributedOptimizer<Optimizer>& optimizer) {
  unscale(optimizer.optimizer(), &optimizer);
}

bool GradScaler::step(Optimizer& optimizer) {
  return step_by([&] { optimizer.step(); }, optimizer,
                 dynamic_cast<torch_detail::ScaledSteps*>(&optimizer));
}
bool GradScaler::step(DistributedOptimizer<Optimizer>& optimizer) {
  return step_by([&] { optimizer.step(); }, optimizer.optimizer(), &optimizer);
}
bool GradScaler::step(AdaScale& ada_scale) {
  const bool made = step_by([&] { ada_scale.make_step(); }, *ada_scale.parts_.optimizer,
                            ada_scale.parts_.scaling);
  if (!made) ada_scale.forget_round();
  return made;
}

void GradScaler::update() {
  if (!options_.enabled) return;
  bool looked = false;
  bool found = false;
  for (auto& [optimizer, record] : records_) {
    looked = looked || record.stage != Stage::Ready;
    found = found_in(record) || found;
  }
  if (!looked) refuse_scaling("update() was called before step() or unscale_() of any optimizer");
  grow_or_shrink(found, options_, scale_, growth_tracker_);
  records_.clear();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  const auto scale = static_cast<float>(new_scale);
  if (!std::isnormal(scale) || scale < 0) {
    refuse_scaling("update(): the scale is ", new_scale, "; give ", kScaleRange);
  }
  scale_ = scale;
  records_.clear();
}

void GradScaler::save(::torch::serialize::OutputArchive& archive) const {
  archive.write("scale", c10::IValue(static_cast<double>(scale_)));
  archive.write("growth_factor", c10::IValue(options_.growth_factor));
  archive.write("backoff_factor", c10::IValue(options_.backoff_factor));
  archive.write("growth_interval", c10::IValue(options_.growth_interval));
  archive.write("growth_tracker", c10::IValue(growth_tracker_));
}

void GradScaler::load(::torch::serialize::InputArchive& archive) {
  const auto read_as = [&]<class Value>(const char* key, bool (c10::IValue::*is)() const,
                                        Value (c10::IValue::*get)() const) {
    c10::IValue value;
    if (!archive.try_read(key, value) || !(value.*is)()) {
      refuse_scaling("the archive has no \"", key, "\" of a scaler");
    }
    return (value.*get)();
  };
  const auto real = [&](const char* key) {
    return read_as(key, &c10::IValue::isDouble, &c10::IValue::toDouble);
  };
  const auto integer = [&](const char* key) {
    return read_as(key, &c10::IValue::isInt, &c10::IValue::toInt);
  };
  const GradScalerOptions loaded{.init_scale = real("scale"),
                                 .growth_factor = real("growth_factor"),
                                 .backoff_factor = real("backoff_factor"),
                                 .growth_interval = integer("growth_interval"),
                                 .enabled = options_.enabled};
  const int64_t tracker = integer("growth_tracker");
  check_options(loaded);
  if (tracker < 0) refuse_scaling("growth_tracker is ", tracker, ", below 0");
  const double init_scale = options_.init_scale;
  options_ = loaded;
  options_.init_scale = init_scale;
  scale_ = static_cast<float>(loaded.init_scale);
  growth_tracker_ = tracker;
  records_.clear();
}

::torch::serialize::OutputArchive& operator<<(::torch::serialize::OutputArchive& archive,
                                              const GradScaler& scaler) {
  scaler.save(archive);
  return archive;
}

::torch::serialize::InputArchive& operator>>(::torch::serialize::InputArchive& archive,
                                             GradScaler& scaler) {
  scaler.load(archive);
  return archive;
}

}  // namespace horon::amp
