// An optimizer whose state is shared out over ranks: each has that of some parameters.
#pragma once

#include <optional>
#include <vector>

namespace horon::torch_detail {

class ShardedState {
 public:
  // The ranks that share the state, this one among them, ascending. Empty: the state is not shared
  // out.
  virtual std::vector<int> ranks_of_state() const = 0;
  // Gives the state of all parameters to one of the ranks that share it, by default the lowest of
  // them. Collective among them. It does nothing where that rank has loaded all of it since the
  // last step.
  virtual void consolidate_state(std::optional<int> to = {}) = 0;
  // All state has been loaded on this rank.
  virtual void note_state_loaded() = 0;
  // Drops what this rank has of other ranks' state.
  virtual void keep_own_state() = 0;

 protected:
  ~ShardedState() = default;
};

}  // namespace horon::torch_detail
