#include "horon/torch_bindings/gradients/settings.h"

#include <cmath>
#include <string_view>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/gradients/step_scaling.h"
#include "horon/torch_bindings/tensors/stream_order.h"

namespace horon::torch_detail {
namespace {

template <class... Values>
[[noreturn]] void refuse_settings(const Values&... values) {
  throw Error(ErrorCode::InvalidArgument, core::concat(values...));
}

int64_t pieces_of(const std::optional<int64_t>& wish, int64_t knob) {
  if (wish && *wish < 0) refuse_settings("piece_bytes is ", *wish, "; give 0 or more");
  return wish.value_or(knob);
}

int64_t bytes_or(const std::optional<int64_t>& wish, int64_t knob, std::string_view what) {
  if (wish && *wish <= 0) refuse_settings(what, " is ", *wish, "; give a number above 0");
  return wish.value_or(knob);
}

void check_shards(const GradientReducerOptions& options) {
  if (!options.shard_gradients) return;
  if (!options.shard_optimizer_state) {
    refuse_settings("shard_gradients is set without shard_optimizer_state, but a gradient goes to ",
                    "the rank that keeps the parameter's state; set both");
  }
  if (options.op != ReduceOp::Average && options.op != ReduceOp::Sum) {
    refuse_settings("shard_gradients needs op Average or Sum, but op is ", to_string(options.op));
  }
  if (options.compression == Compression::Int8) {
    refuse_settings("shard_gradients doesn't work with compression to int8, which only allreduces ",
                    "support; set compression to Float16 or BFloat16");
  }
  if (!options.sparse_as_dense) {
    refuse_settings("shard_gradients doesn't work with sparse_as_dense = false, which reduces ",
                    "sparse gradients on all ranks; choose one");
  }
}

void check(const GradientReducerOptions& options) {
  const bool linear = options.op == ReduceOp::Sum || options.op == ReduceOp::Average;
  if (is_bitwise(options.op)) {
    refuse_settings("op is ", to_string(options.op),
                    ", which floating-point gradients don't have; use Average or Sum");
  }
  if (options.op == ReduceOp::Adasum) {
    refuse_settings("op is Adasum, which combines optimizer steps, not gradients; use ",
                    "horon::AdasumOptimizer");
  }
  if (options.backward_passes_per_step < 1) {
    refuse_settings("backward_passes_per_step is ", options.backward_passes_per_step,
                    "; give 1 or more");
  }
  const double factor = options.gradient_predivide_factor;
  if (!std::isfinite(factor) || factor <= 0) {
    refuse_settings("gradient_predivide_factor is ", factor, "; give a finite number above 0");
  }
  if (factor != 1 && options.op != ReduceOp::Average) {
    refuse_settings("gradient_predivide_factor needs op Average, but op is ",
                    to_string(options.op));
  }
  if (options.average_aggregated_gradients && !linear) {
    refuse_settings("average_aggregated_gradients needs op Average or Sum, but op is ",
                    to_string(options.op));
  }
  if (!options.sparse_as_dense && !linear) {
    refuse_settings("sparse_as_dense = false needs op Average or Sum, but op is ",
                    to_string(options.op));
  }
  if (options.num_groups < 0)
    refuse_settings("num_groups is ", options.num_groups, "; give 0 or more");
  if (options.num_groups > 0 && !options.groups.empty()) {
    refuse_settings("groups and num_groups are both given; choose one");
  }
  check_grad_scale(options.grad_scale);
  const double clip = options.clip_grad_norm.value_or(1);
  if (!(clip > 0)) refuse_settings("clip_grad_norm is ", clip, "; give a number above 0");
  const double value = options.clip_grad_value.value_or(1);
  if (!(value > 0)) refuse_settings("clip_grad_value is ", value, "; give a number above 0");
  if (options.clip_grad_value && options.clip_grad_norm && !std::isinf(clip)) {
    refuse_settings("clip_grad_norm and clip_grad_value are both given; choose one");
  }
  if (options.skip_nonfinite && options.check_finite.value_or(false)) {
    refuse_settings(
        "check_finite (NaN is an error) and skip_nonfinite (NaN skips the step) are both given; "
        "choose one");
  }
  check_shards(options);
}

}  // namespace

std::string GradientSettings::text() const {
  std::string text{to_string(op)};
  if (compression != Compression::None) text += core::concat(", ", to_string(compression));
  if (passes != 1) text += core::concat(", ", passes, " passes");
  if (prescale != 1 || postscale != 1) {
    text += core::concat(", scales ", prescale, " and ", postscale);
  }
  if (!sparse_as_dense) text += ", sparse";
  if (wait_in == WaitIn::Step) text += ", waits in step";
  // Never and WhereBitEqual give the same parameters.
  if (fused_step == FusedStep::WherePossible) text += ", steps fused where possible";
  if (grad_scale != 1) text += core::concat(", loss scale ", grad_scale);
  if (skip_nonfinite) text += ", steps with NaN skipped";
  if (clip_grad_norm) text += core::concat(", clipped to norm ", *clip_grad_norm);
  if (clip_grad_value) text += core::concat(", clipped to values of ", *clip_grad_value);
  if (shard_optimizer_state) text += ", optimizer state sharded";
  if (shard_gradients) text += ", gradients sharded";
  if (mixed) {
    text += ", on ranks with and without a GPU";
  } else if (!device.is_cpu()) {
    text += core::concat(", on ", c10::DeviceTypeName(device.type(), true));
  }
  if (!check_replicas) text += ", replicas not compared";
  return text;
}

GradientSettings settings_of(const GradientReducerOptions& options,
                             std::shared_ptr<const ShardOwners> owners) {
  check(options);
  const core::Config& config = ops::runtime().config();
  GradientSettings settings;
  settings.op = options.op;
  settings.process_set = options.process_set;
  settings.set = options.process_set.id();
  settings.ranks = options.process_set.ranks();
  settings.member = options.process_set.includes_me();
  if (settings.member) {
    settings.set_rank = options.process_set.rank();
    settings.mixed = ops::runtime().is_mixed(settings.set, DeviceKind::Cuda);
  }
  settings.bytes = {
      bytes_or(options.first_bucket_bytes, config.first_bucket_bytes, "first_bucket_bytes"),
      bytes_or(options.bucket_bytes, config.bucket_bytes, "bucket_bytes"),
      pieces_of(options.piece_bytes, config.piece_bytes)};
  settings.compression = options.compression;
  settings.passes = options.backward_passes_per_step;
  settings.prescale = 1 / options.gradient_predivide_factor;
  settings.postscale = options.gradient_predivide_factor;
  settings.shard_optimizer_state = options.shard_optimizer_state;
  settings.shard_gradients =
      options.shard_gradients && settings.member && settings.ranks.size() > 1;
  if (settings.shard_gradients) settings.owners = std::move(owners);
  settings.averages_passes = options.average_aggregated_gradients;
  if (options.average_aggregated_gradients) {
    settings.postscale /= settings.passes;
    if (!settings.adds_older_value()) settings.older_share = settings.passes;
  }
  settings.sparse_as_dense = options.sparse_as_dense;
  settings.check_finite =
      options.check_finite.value_or(config.check_finite && !options.skip_nonfinite);
  settings.check_replicas = options.check_replicas.value_or(config.check_replicas);
  settings.wait_in = options.wait_in;
  settings.fused_step = options.fused_step;
  settings.grad_scale = options.grad_scale;
  settings.skip_nonfinite = options.skip_nonfinite;
  settings.clip_grad_norm = options.clip_grad_norm;
  settings.clip_grad_value = options.clip_grad_value;
  return settings;
}

core::EntrySpec gradient_spec(const GradientSettings& settings, DataType dtype) {
  core::EntrySpec spec;
  spec.kind = CollectiveKind::Allreduce;
  spec.dtype = dtype;
  spec.device = device_in_spec(settings.device, settings.set);
  spec.reduce_op = settings.op;
  spec.prescale = settings.prescale;
  spec.postscale = settings.postscale;
  if (dtype == DataType::Float32) spec.compression = settings.compression;
  spec.piece_bytes = settings.bytes.piece;
  return spec;
}

}  // namespace horon::torch_detail
