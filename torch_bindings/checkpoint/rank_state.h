// What each rank has of its own although the model is alike: random numbers, and buffers that each
// rank changes by itself (running means of its batches). What LibTorch's optimizers have so is
// refused.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>

#include "horon/torch_bindings/checkpoint/checkpoint_parts.h"

namespace horon::torch_detail {

// 64 bits for each own tensor of the parts, one after the other.
std::string buffer_fingerprints(const NamedParts& parts);
// Copies of the own tensors whose fingerprint differs from the writer's: part to name to tensor.
c10::IValue differing_buffers(const NamedParts& parts, const std::string& fingerprints_of_root);

// Throws Error(InvalidArgument) on all ranks of the set if the optimizer's state on some is not the
// writer's, which alone is saved. Ranks without state don't count, nor those on another kind of
// device or of CPU than the writer's; nor do optimizers that write an archive, whose bytes may
// differ. Collective.
void require_same_state(const std::string& name, torch::optim::Optimizer& optimizer,
                        const ProcessSet& set);

// What the ranks that saved a checkpoint had of their own, as far as this rank needs it.
struct SavedOfRanks {
  int ranks = 0;            // that saved it
  bool same_ranks = false;  // as many as load it
  // With same_ranks: what this rank has saved. Else: the things of all ranks, in their order, with
  // the random numbers of the first.
  std::vector<c10::IValue> states;
};

// Sends each rank of the set what it needs of `of_ranks`, which the writer has read (empty
// elsewhere). `ranks`: how many have saved it. Collective.
SavedOfRanks share_states(const c10::impl::GenericList& of_ranks, int ranks,
                          const ProcessSet& set = {});

// Random numbers and buffers. On another number of ranks all keep the writer's buffers, and random
// numbers begin anew, with a seed made of what the first rank saved and the rank's place in the
// set; the writer warns of that.
void load_rank_state(const NamedParts& parts, const SavedOfRanks& saved, const ProcessSet& set);

}  // namespace horon::torch_detail
