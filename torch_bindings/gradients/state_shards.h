// Optimizer state shared out over ranks, which is stage 1 of ZeRO (Rajbhandari et al. 2020, "ZeRO:
// Memory Optimizations Toward Training Trillion Parameter Models").
//
// Each parameter has an owner among the ranks, which alone keeps its state and moves it. A step
// hides the gradients of the other parameters from the optimizer, which leaves parameters without a
// gradient alone; then each owner broadcasts what it has moved. So it works with any optimizer that
// treats each parameter by itself and keeps its state in state(), and the parameters are the same
// bits as without it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include <torch/optim/optimizer.h>

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/tensors/named_tensors.h"

namespace horon::torch_detail {

class StateShards {
 public:
  using Optimizer = ::torch::optim::Optimizer;
  using Groups = std::vector<::torch::optim::OptimizerParamGroup>;

  // Among the ranks of the set, of which this is one. `name`: of the reducer; the collectives are
  // called after it. `parameters`: all of the groups, in one order on all ranks. Local. Throws
  // Error(InvalidArgument) naming parameters that share memory, or one that the groups list twice.
  StateShards(std::string name, ProcessSet set, const NamedTensors& parameters,
              const Groups& groups);
  // Those that have come to the groups since, likewise.
  void add(const NamedTensors& parameters, const Groups& groups);

  // Lets `own_step` make the step of this rank's parameters and returns what it does, then gives
  // all ranks the parameters that were moved: those with a gradient. Collective. Throws
  // Error(Mismatch) if the ranks differ about which those are, or some have loaded state and others
  // not; Error(RankLeft) if a rank has joined, whose parameters can't be moved: then nothing has
  // moved. What `own_step` throws: the steps of the other ranks fail with it.
  at::Tensor step(Optimizer& optimizer, const std::function<at::Tensor()>& own_step);
  // In the place of a step that the other ranks make.
  void refuse_step(const std::string& why) const;

  // As ShardedState says (sharded_state.h).
  void consolidate(Optimizer& optimizer, int to);
  void note_loaded() { has_ = Has::Loaded; }
  void keep_own(Optimizer& optimizer);
  const std::vector<int>& ranks() const { return ranks_; }
  // Throws Error(InvalidArgument) if this rank lacks state that others have.
  void require_whole() const;

 private:
  struct Item {
    std::string name;
    at::Tensor parameter;
    int owner = 0;  // a rank of the world
  };
  // Of the parameters of one owner and dtype that a step moves, whole or in parts: what travels
  // together.
  struct Parcel {
    int owner = 0;
    std::string name;
    std::vector<at::Tensor> parameters;
  };
  // Of the state of all parameters.
  enum class Has : uint8_t {
    Part,
    Whole,   // none has been made yet, or it was gathered here since the last step
    Loaded,  // it was loaded here since the last step
  };

  void share_out(size_t first);
  void require_apart() const;
  void require_once(const Groups& groups) const;
  size_t member_of(int rank) const;
  bool is_own(const void* parameter) const;
  std::vector<int64_t> of_all_ranks(const std::string& name, int64_t own) const;
  void agree() const;
  std::vector<Parcel> parcels() const;
  void exchange(const std::vector<Parcel>& parcels) const;
  void refuse(const std::vector<std::string>& names, const std::string& why) const;
  void gather_state(Optimizer& optimizer, int to, const std::string& call);
  std::string save_own(Optimizer& optimizer);
  void load_theirs(Optimizer& optimizer, const std::string& bytes, int owner) const;

  const std::string name_;
  const ProcessSet set_;
  const std::vector<int> ranks_;
  const int me_;
  std::vector<Item> items_;  // in the order of all ranks
  std::unordered_map<const void*, int> owners_;
  std::vector<int64_t> trained_bytes_, frozen_bytes_;  // [member]: of the parameters it owns
  Has has_ = Has::Whole;
  bool saves_own_ = false;
};

}  // namespace horon::torch_detail
