// A reducer's options on this rank: checked, and with the knobs filled in.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "horon/torch_bindings/gradients/gradient_reducer.h"
#include "horon/torch_bindings/gradients/plan.h"
#include "horon/torch_bindings/gradients/shard_owners.h"

namespace horon::torch_detail {

struct GradientSettings {
  ReduceOp op = ReduceOp::Average;
  ProcessSet process_set;
  // The process set: its number, its ranks, and this rank's index among them.
  uint32_t set = 0;
  std::vector<int> ranks;
  int set_rank = 0;
  bool member = true;
  BucketBytes bytes;
  Compression compression = Compression::None;
  double prescale = 1;
  double postscale = 1;
  int passes = 1;  // backward passes before a bucket is submitted
  bool sparse_as_dense = true;
  bool check_finite = false;
  bool check_replicas = true;
  WaitIn wait_in = WaitIn::Backward;
  FusedStep fused_step = FusedStep::WhereBitEqual;
  double grad_scale = 1;
  bool skip_nonfinite = false;
  std::optional<double> clip_grad_norm;
  std::optional<double> clip_grad_value;
  bool shard_optimizer_state = false;
  bool shard_gradients = false;  // and there are several ranks
  // With shard_gradients: to whom each gradient is reduced.
  std::shared_ptr<const ShardOwners> owners;

  // An older value in .grad is multiplied by this before it is reduced again, so that it comes out
  // unchanged.
  double older_share = 1;
  bool averages_passes = false;  // average_aggregated_gradients
  // The same for an older value that counts as a new gradient of this rank's.
  double share_as_new() const { return averages_passes ? passes : 1; }
  c10::Device device{c10::kCPU};  // of all parameters, as they are now
  bool mixed = false;             // as Runtime::is_mixed()

  // Whether rounds can be plain: the program can't change gradients after the last bucket was
  // submitted, and every gradient goes into a bucket.
  bool allows_plain_rounds() const {
    return wait_in == WaitIn::Backward && sparse_as_dense && is_linear();
  }
  // In blocks of int8 a flag that one rank has raised could become zero beside one that all have:
  // with 170 ranks or more, where both the sum of a host and the result are rounded.
  static constexpr size_t kRanksMaxOfInt8 = 127;
  // Whether the ranks tell each other within the buckets that a round is plain (round_flags.h). Not
  // with buckets on a GPU: to read them the host would have to wait for it. Nor with
  // shard_gradients, where a rank gets only its own part of a bucket. Without these flags each
  // round ends with the small allreduce of host memory that tells the rest too (round_agreement.h).
  bool has_round_flags() const {
    return allows_plain_rounds() && all_on_host() && !shard_gradients &&
           (compression != Compression::Int8 || ranks.size() <= kRanksMaxOfInt8);
  }
  // To read parameters on a GPU the host would have to wait for it.
  bool compares_replicas() const { return check_replicas && all_on_host(); }
  // Whether the buckets of all ranks lie in host memory.
  bool all_on_host() const { return device.is_cpu() && !mixed; }
  // A rank that reduces with nobody: .grad is what backward() has made it, in memory of its own.
  bool leaves_gradients_alone() const {
    return ranks.size() == 1 && allows_plain_rounds() && !check_finite &&
           (passes == 1 || !averages_passes);
  }
  // An older value in .grad is kept aside and added to the sum. Within the sum it would count once
  // for each rank that has not joined, and their number is known only afterwards. And with
  // shard_gradients its owner alone has it.
  bool adds_older_value() const { return op == ReduceOp::Sum || shard_gradients; }
  // Whether a copy of an older value is kept, to undo its rounding. An average of equal values is
  // that value, but not in a block of int8 with other values. In 16 bits it is rounded as every
  // gradient is: a copy would cost every hook.
  bool keeps_older_value() const {
    return compression == Compression::Int8 && op == ReduceOp::Average;
  }
  bool is_linear() const { return op == ReduceOp::Sum || op == ReduceOp::Average; }
  // What ranks compare, in words.
  std::string text() const;
};

// Throws Error(InvalidArgument) naming the option, Error(NotInitialized).
// `owners`: used with shard_gradients where there are several ranks.
GradientSettings settings_of(const GradientReducerOptions& options,
                             std::shared_ptr<const ShardOwners> owners);

// The spec of a reduction of gradients, without its parts.
core::EntrySpec gradient_spec(const GradientSettings& settings, DataType dtype);

}  // namespace horon::torch_detail
