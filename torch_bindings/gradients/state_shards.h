// Optimizer state shared out over ranks, which is stage 1 of ZeRO (Rajbhandari et al. 2020, "ZeRO:
// Memory Optimizations Toward Training Trillion Parameter Models").
//
// Each parameter has an owner among the ranks, which alone keeps its state and moves it. A step
// hides the gradients of the other parameters from the optimizer, which leaves parameters without a
// gradient alone; then each owner broadcasts what it has moved. So it works with any optimizer that
// treats each parameter by itself, and the parameters are the same bits as without it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "horon/ops/session/process_set.h"

namespace horon::torch_detail {

class StateShards {
 public:
  using Optimizer = ::torch::optim::Optimizer;

  using Groups = std::vector<::torch::optim::OptimizerParamGroup>;

  // Among the ranks of the set, of which this is one. `name`: of the reducer; the collectives are
  // called after it. Local.
  StateShards(std::string name, ProcessSet set, const Groups& groups);

  // Lets `own_step` make the step of this rank's parameters and returns what it does, then gives
  // all ranks the parameters that were moved: those that had a gradient, on this rank as on all.
  // Parameters that are new in the groups are shared out first. Collective. Throws what `own_step`
  // throws, after the other ranks' steps have been failed with it; Error(RankLeft) if a rank has
  // joined, whose parameters can't be moved.
  at::Tensor step(Optimizer& optimizer, const std::function<at::Tensor()>& own_step);

  // As ShardedState says (sharded_state.h).
  void consolidate(Optimizer& optimizer, int to);
  void note_loaded() { consolidated_ = true; }
  void keep_own(Optimizer& optimizer);
  // Throws Error(InvalidArgument) if this rank lacks state that others have.
  void require_whole(const Optimizer& optimizer) const;

  const std::vector<int>& ranks() const { return ranks_; }

 private:
  // Parameters of one owner and dtype that a step moves, and that travel together.
  struct Parcel {
    int owner = 0;  // a rank of the world
    int64_t bytes = 0;
    std::string name;
    std::vector<at::Tensor> parameters;
  };

  void share_out(const Groups& groups);
  size_t member_of(int rank) const;
  int owner_of(const at::Tensor& parameter) const;
  bool is_own(const void* parameter) const;
  bool has_state_of_others(const Optimizer& optimizer) const;
  std::vector<Parcel> moved_in_step(const Groups& groups) const;
  void exchange(const std::vector<Parcel>& parcels) const;
  void fail_others(const std::vector<Parcel>& parcels, const std::string& why) const;
  std::string save_own(Optimizer& optimizer);
  void load_theirs(Optimizer& optimizer, const std::string& bytes, int owner) const;

  const std::string name_;
  const ProcessSet set_;
  const std::vector<int> ranks_;
  const int me_;
  std::vector<int64_t> bytes_of_;                // [member]: of the parameters it owns
  std::unordered_map<const void*, int> owners_;  // of each parameter: a rank of the world
  bool consolidated_ = false;                    // since the last step
  bool saves_shard_ = false;
};

}  // namespace horon::torch_detail
