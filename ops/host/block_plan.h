// Which bytes a rank gives each other rank in one collective, and where it puts what it gets.
#pragma once

#include <cstdint>
#include <vector>

#include "horon/core/execution/collective_op.h"

namespace horon::ops {

// A stretch of the input or of the output of one rank.
struct Block {
  int64_t begin = 0;  // bytes
  int64_t bytes = 0;
};

// For Broadcast, Allgather, Alltoall, Gather, Scatter and Reducescatter. What one rank sends
// another is as long as what the other expects of it; both know that length.
struct BlockPlan {
  std::vector<Block> send;     // [member that it is for], in the input
  std::vector<Block> receive;  // [member that it comes from], in the output
  int64_t input_bytes = 0;     // that anybody reads
  int64_t output_bytes = 0;
  bool one_for_all = false;  // every member is sent the same block
  bool reduces = false;      // the blocks received are reduced into one block of the output
};

BlockPlan make_block_plan(const core::Batch& batch, int rank, int ranks);

}  // namespace horon::ops
