// Batch normalization over the samples of all ranks.
//
//   horon::SyncBatchNorm norm(torch::nn::BatchNormOptions(64).eps(1e-3));
//   at::Tensor y = norm(x);                           // [N, 64], [N, 64, L], [N, 64, H, W], ...
//   horon::convert_sync_batchnorm(*model);            // convert_sync_batchnorm.h
//
// One module for what LibTorch has as BatchNorm1d, 2d and 3d, with their options, parameters,
// buffers and names: an archive of one is read by the other. Results, gradients and running
// statistics are those of one process that has the samples of all ranks, up to rounding. Where
// ranks have unlike numbers of samples, that asks for a loss that is the sum over a rank's samples
// times ranks / all samples, and not for set_weight(): backward adds up the ranks' gradients here.
//
// While training, forward makes one allgather of mean, squared deviations and number of samples,
// and backward one allreduce of two sums for each channel. Both wait, so all ranks of the process
// set call their modules in the same order. A rank may have any number of samples, also none:
// [0, C, ...]. Together they need two values for each channel, or all ranks throw InvalidArgument;
// where no rank has any sample, the running statistics stay as they are.
//
// In eval mode nothing is communicated, and no session is needed. A process set of one rank
// communicates nothing either.
//
// Backward is collective. The samples of each rank have a part in mean and variance everywhere, so
// every rank must go through it: a loss that does not need the output has `+ 0 * y.sum()`. The
// ranks wait `backward_timeout` for one that does not come, and name it on standard error before
// that (HORON_STALL_WARN_S); then they throw Error(Timeout). Where a module was called twice and a
// rank goes back through one of the two calls only, all ranks throw Error(Mismatch).
//
// Derivatives of derivatives are refused (InvalidArgument).
//
// float32 and float64; float16 and bfloat16 with statistics in float32, whatever the type of the
// parameters. Any strides; the output has the memory format of the input. On the CPU or on the GPU
// of the rank, where the host does not wait for the device (except with momentum std::nullopt, as
// in LibTorch, and where a rank has a single value for each channel). One thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <string>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include "horon/ops/session/process_set.h"

namespace horon {

class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                             const ProcessSet& set = {});
  // In the place of `source`: its parameters and buffers (the same tensors), options and mode.
  template <size_t D, class Derived>
  explicit SyncBatchNormImpl(const torch::nn::BatchNormImplBase<D, Derived>& source,
                             const ProcessSet& set = {})
      : SyncBatchNormImpl(source.options, set,
                          {source.weight, source.bias, source.running_mean, source.running_var,
                           source.num_batches_tracked}) {
    this->train(source.is_training());
  }

  at::Tensor forward(const at::Tensor& input);

  void reset() override;
  void reset_parameters();
  void reset_running_stats();
  void pretty_print(std::ostream& stream) const override;

  torch::nn::BatchNormOptions options;
  ProcessSet process_set;
  // Of the collectives, the same on all ranks. Empty: "sync_batch_norm.noname.N", counted when the
  // module first communicates. If a rank has joined by then, that name holds until the join() ends;
  // the next call counts anew, on all ranks.
  std::string collective_name;
  std::chrono::nanoseconds backward_timeout = std::chrono::minutes(5);

  // [num_features]; undefined where the options leave them out.
  at::Tensor weight, bias, running_mean, running_var;
  at::Tensor num_batches_tracked;  // int64, a scalar

 private:
  struct Tensors {
    at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
  };
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, const ProcessSet& set,
                    const Tensors& tensors);
  void register_all(const Tensors& tensors);
  [[noreturn]] void refuse(const std::string& why);
  void check_input(const at::Tensor& input);
  void name_collectives();
  void keep_name();
  double average_factor() const;
  at::Tensor normalize_alone(const at::Tensor& input);
  at::Tensor normalize_with_others(const at::Tensor& input);

  // Calls that communicated since the last join(), so the same on all ranks.
  int64_t calls_ = 0;
  uint64_t joins_ = 0;                // until the last call
  std::string name_until_join_ = {};  // while ranks that have joined may lack it
};

TORCH_MODULE(SyncBatchNorm);

}  // namespace horon
