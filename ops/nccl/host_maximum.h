// The maximum over numbers of a line's members, in host memory: this is how they agree on something
// while a collective of theirs on a device is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "horon/core/execution/collective_op.h"

namespace horon::ops {

// In place. `allreduce`: as in LaunchTurn. The numbers must live until the flight has ended.
inline std::unique_ptr<core::InFlight> start_host_maximum(core::CollectiveOp& allreduce,
                                                          DataType dtype, void* numbers,
                                                          int64_t count) {
  core::Batch batch;
  batch.dtype = dtype;
  batch.reduce_op = ReduceOp::Max;
  batch.count = count;
  batch.output = static_cast<std::byte*>(numbers);
  batch.input = batch.output;
  return allreduce.start(std::move(batch));
}

}  // namespace horon::ops
