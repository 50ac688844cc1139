// What SyncBatchNorm computes: the statistics of all ranks' samples, and the normalization with
// them, whose backward makes sums over all ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "horon/ops/session/process_set.h"

namespace horon::torch_detail {

// Of each channel, over the samples of all ranks; on the device of the input. [channels] in float64
// for float64, else in float32.
struct BatchStatistics {
  at::Tensor mean;
  at::Tensor variance;  // the mean squared deviation, as it normalizes
  at::Tensor unbiased;  // the same for running statistics: divided by one value less
  at::Tensor count;     // float64, a scalar: values for each channel on all ranks
  // `count` on the host, if this rank has at most one value itself. Else the host does not know it:
  // 2 or more.
  std::optional<int64_t> small_count;
  bool of_all_ranks = false;  // none of them had joined
};

// `input`: [samples, channels, ...], floating. Collective (allgather).
BatchStatistics gather_statistics(const at::Tensor& input, const std::string& name,
                                  const ProcessSet& set);

struct NormalizationCall {
  std::string name;  // of the module's collectives
  ProcessSet process_set;
  double eps = 0;
  int64_t number = 0;  // of this call of the module since the last join(), from 1
  std::chrono::nanoseconds backward_timeout{};
};

// (input - mean) / sqrt(variance + eps) * weight + bias, in the dtype of the input. Weight and bias
// may be undefined. While gradients are recorded the result requires grad, on every rank, because
// its backward is collective (allreduce).
at::Tensor normalize(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const BatchStatistics& statistics, const NormalizationCall& call);

}  // namespace horon::torch_detail
