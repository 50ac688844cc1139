#include "horon/torch_bindings/modules/sync_batch_norm.h"

#include <ostream>
#include <string_view>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/functional/batchnorm.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/call_counts.h"
#include "horon/ops/session/running_job.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/modules/activation_checkpoint.h"
#include "horon/torch_bindings/modules/synced_normalization.h"

namespace horon {

using core::concat;

namespace {
constexpr std::string_view kKind = "sync_batch_norm";
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& given,
                                     const ProcessSet& set)
    : options(given), process_set(set) {
  SyncBatchNormImpl::reset();
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& given,
                                     const ProcessSet& set, const Tensors& tensors)
    : options(given), process_set(set) {
  register_all(tensors);
}

void SyncBatchNormImpl::register_all(const Tensors& tensors) {
  const auto add_parameter = [this](const char* name, const at::Tensor& tensor) {
    return this->register_parameter(name, tensor, tensor.defined() && tensor.requires_grad());
  };
  weight = add_parameter("weight", tensors.weight);
  bias = add_parameter("bias", tensors.bias);
  running_mean = this->register_buffer("running_mean", tensors.running_mean);
  running_var = this->register_buffer("running_var", tensors.running_var);
  num_batches_tracked = this->register_buffer("num_batches_tracked", tensors.num_batches_tracked);
}

void SyncBatchNormImpl::reset() {
  Tensors tensors;
  const int64_t features = options.num_features();
  if (options.affine()) {
    tensors.weight = at::empty({features}).requires_grad_(true);
    tensors.bias = at::empty({features}).requires_grad_(true);
  }
  if (options.track_running_stats()) {
    tensors.running_mean = at::empty({features});
    tensors.running_var = at::empty({features});
    tensors.num_batches_tracked = at::zeros({}, at::kLong);
  }
  register_all(tensors);
  reset_parameters();
  collective_name.clear();  // a clone counts its own
  name_until_join_.clear();
  calls_ = 0;
}

void SyncBatchNormImpl::reset_parameters() {
  reset_running_stats();
  if (!options.affine()) return;
  const at::NoGradGuard no_grad;
  weight.fill_(1);
  bias.zero_();
}

void SyncBatchNormImpl::reset_running_stats() {
  if (!options.track_running_stats()) return;
  running_mean.zero_();
  running_var.fill_(1);
  num_batches_tracked.zero_();
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "horon::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum().has_value()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ')';
}

// Throws, and tells the other ranks if they would wait for this one.
void SyncBatchNormImpl::refuse(const std::string& why) {
  const std::string name = collective_name.empty() ? "" : concat(" \"", collective_name, "\"");
  const std::string text = concat("SyncBatchNorm", name, ": ", why);
  if (!is_training() || process_set.size() == 1) throw Error(ErrorCode::InvalidArgument, text);
  torch_detail::refuse_call(collective_name, process_set, text);
}

void SyncBatchNormImpl::check_input(const at::Tensor& input) {
  if (!input.defined()) refuse("the input is undefined");
  if (input.dim() < 2 || input.dim() > 5 || input.size(1) != options.num_features()) {
    refuse(concat("the input has shape ", core::shape_text(input.sizes()), "; give it [samples, ",
                  options.num_features(), ", ...] with 2 to 5 ", "dimensions"));
  }
  if (!input.is_floating_point()) {
    refuse(concat("the input is ", input.dtype().name(), "; give it a floating-point dtype"));
  }
}

void SyncBatchNormImpl::name_collectives() {
  const uint64_t joins = ops::call_counts().times_forgotten(process_set.id());
  if (std::exchange(joins_, joins) != joins) {  // ranks that had joined have not made our calls
    calls_ = 0;
    if (collective_name == name_until_join_) collective_name.clear();
    name_until_join_.clear();
  }
  const bool counted = collective_name.empty();
  collective_name =
      torch_detail::given_or_counted_called_object(collective_name, kKind, process_set.id());
  if (counted) name_until_join_ = collective_name;
}

// After a call of all ranks.
void SyncBatchNormImpl::keep_name() {
  if (collective_name == name_until_join_) {
    ops::call_counts().keep_objects(kKind, process_set.id());
  }
  name_until_join_.clear();
}

double SyncBatchNormImpl::average_factor() const {
  if (options.momentum().has_value()) return *options.momentum();
  return num_batches_tracked.defined() ? 1.0 / num_batches_tracked.item<double>() : 0.0;
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  const bool alone = !is_training() || process_set.size() == 1;
  if (!alone) name_collectives();
  check_input(input);
  return alone ? normalize_alone(input) : normalize_with_others(input);
}

at::Tensor SyncBatchNormImpl::normalize_alone(const at::Tensor& input) {
  const bool own_statistics = is_training() || !running_mean.defined();
  const int64_t channels = options.num_features();
  if (own_statistics && channels > 0 && input.numel() == channels) {
    refuse("one value per channel has no variance; give more samples");
  }
  const bool updates =
      is_training() && running_mean.defined() && !recomputing() && input.numel() > 0;
  if (updates) num_batches_tracked += 1;
  const bool reads = updates || !own_statistics;
  const at::Tensor none;
  return torch::nn::functional::detail::batch_norm(
      input, reads ? running_mean : none, reads ? running_var : none, weight, bias, own_statistics,
      updates ? average_factor() : 0.0, options.eps());
}

at::Tensor SyncBatchNormImpl::normalize_with_others(const at::Tensor& input) {
  const torch_detail::BatchStatistics statistics =
      torch_detail::gather_statistics(input, collective_name, process_set);
  if (statistics.of_all_ranks) keep_name();
  if (statistics.small_count == 1) {  // then all ranks know it, and all throw
    throw Error(
        ErrorCode::InvalidArgument,
        concat("SyncBatchNorm \"", collective_name, "\": one value per channel on all ranks ",
               "together has no variance; give more samples (this rank's input has shape ",
               core::shape_text(input.sizes()), ")"));
  }
  // Where no rank has a sample there is no batch to average over.
  if (running_mean.defined() && !recomputing() && statistics.small_count != 0) {
    const at::NoGradGuard no_grad;
    num_batches_tracked += 1;
    const double factor = average_factor();
    running_mean.mul_(1 - factor).add_(statistics.mean, factor);
    running_var.mul_(1 - factor).add_(statistics.unbiased, factor);
  }
  return torch_detail::normalize(input, weight, bias, statistics,
                                 {.name = collective_name,
                                  .process_set = process_set,
                                  .eps = options.eps(),
                                  .number = ++calls_,
                                  .backward_timeout = backward_timeout});
}

}  // namespace horon
