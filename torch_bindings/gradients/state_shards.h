// Optimizer state shared out over ranks, which is stage 1 of ZeRO (Rajbhandari et al. 2020, "ZeRO:
// Memory Optimizations Toward Training Trillion Parameter Models").
//
// Each parameter has an owner among the ranks, which alone keeps its state and moves it. A step
// hides the gradients of the other parameters from the optimizer, which leaves parameters without a
// gradient alone; then each owner broadcasts what it has moved. So it works with any optimizer that
// treats each parameter by itself and keeps its state in state(), and the parameters are the same
// bits as without it.
//
// With shard_gradients each gradient is reduced to the owner alone (reducer_impl.h), and the others
// hear from the owners which parameters they have moved.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/gradients/shard_owners.h"
#include "horon/torch_bindings/tensors/named_tensors.h"

namespace horon::torch_detail {

class StateShards {
 public:
  using Optimizer = ::torch::optim::Optimizer;
  using Groups = std::vector<::torch::optim::OptimizerParamGroup>;

  // `name`: of the reducer; the collectives are called after it. `owners`: of these parameters;
  // `whole_gradients`: all ranks see all reduced gradients. `parameters`: all of the groups, in one
  // order on all ranks. Local. Throws Error(InvalidArgument) naming parameters that share memory,
  // or one that the groups list twice.
  StateShards(std::string name, ProcessSet set, std::shared_ptr<const ShardOwners> owners,
              bool whole_gradients, const NamedTensors& parameters, const Groups& groups);
  // Adds parameters that have come to the groups since, likewise.
  void add(const NamedTensors& parameters, const Groups& groups);

  // Calls `own_step` for this rank's parameters, then gives all ranks the parameters that were
  // moved: those with a gradient. Returns what `own_step` returns. Collective. Throws
  // Error(Mismatch) if the ranks differ about which were moved, or only some have loaded state;
  // Error(RankLeft) if a rank has joined, whose parameters can't be moved: then nothing has moved.
  // If `own_step` throws, the steps of the other ranks fail with its error.
  at::Tensor step(Optimizer& optimizer, const std::function<at::Tensor()>& own_step);
  // Makes the other ranks' step fail with `why`; `after_sum`: they call sum_of_owners() first.
  void refuse_step(const std::string& why, bool after_sum) const;
  // Without whole gradients: what the owners have found in theirs, added up. Collective.
  at::Tensor sum_of_owners(const at::Tensor& found) const;

  // As ShardedState says (sharded_state.h).
  void consolidate(Optimizer& optimizer, int to);
  void note_loaded() { has_ = Has::Loaded; }
  void keep_own(Optimizer& optimizer);
  const std::vector<int>& ranks() const { return owners_->ranks(); }
  // Throws Error(InvalidArgument) if this rank lacks state that others have.
  void require_whole() const;

 private:
  struct Item {
    std::string name;
    at::Tensor parameter;
    size_t owner = 0;  // its index among the ranks
  };
  // What travels together: parameters of one owner and dtype that a step moves, whole or in parts.
  struct Parcel {
    int owner = 0;
    std::string name;
    std::vector<at::Tensor> parameters;
  };
  // How much this rank has of the state of all parameters.
  enum class Has : uint8_t {
    Part,
    Whole,   // no state has been made yet, or it was gathered here since the last step
    Loaded,  // it was loaded here since the last step
  };

  void require_apart() const;
  void require_once(const Groups& groups) const;
  int me() const { return owners_->me(); }
  size_t member_of(int rank) const;
  bool is_own(const void* parameter) const { return owners_->is_own(parameter); }
  std::vector<std::vector<int64_t>> of_all_ranks(const std::string& name,
                                                 std::vector<int64_t> own) const;
  std::vector<bool> own_moves() const;
  std::vector<bool> agree() const;
  void require_alike(const std::vector<bool>& moves) const;
  std::vector<Parcel> parcels(const std::vector<bool>& moves) const;
  void exchange(const std::vector<Parcel>& parcels) const;
  void refuse(const std::vector<std::string>& names, const std::string& why) const;
  void gather_state(Optimizer& optimizer, int to, const std::string& call);
  std::string save_own(Optimizer& optimizer);
  void load_theirs(Optimizer& optimizer, const std::string& bytes, int owner) const;

  const std::string name_;
  const ProcessSet set_;
  const std::shared_ptr<const ShardOwners> owners_;
  const bool whole_gradients_;
  std::vector<Item> items_;  // in the order of all ranks
  Has has_ = Has::Whole;
  bool saves_own_ = false;
};

}  // namespace horon::torch_detail
