#include "horon/ops/host/shared_memory_allreduce.h"

#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/execution/finished_flight.h"
#include "horon/ops/choice/algorithm.h"
#include "horon/ops/host/host_refusal.h"

namespace horon::ops {
SharedMemoryAllreduce::SharedMemoryAllreduce(core::LocalGroup& group, std::byte* area,
                                             const MachineConstants& constants)
    : constants_(constants),
      ranks_(group.local_size()),
      cells_(group, area),
      pieces_(group, area + SmallAllreduce::area_bytes(group.local_size())) {}

size_t SharedMemoryAllreduce::area_bytes(int local_size) {
  return SmallAllreduce::area_bytes(local_size) + PieceAllreduce::area_bytes(local_size);
}

std::string SharedMemoryAllreduce::refusal(const core::BatchFacts& facts) const {
  return host_refusal(facts, CollectiveKind::Allreduce);
}

core::PieceSizes SharedMemoryAllreduce::piece_sizes(const core::Batch& like) const {
  return PieceAllreduce::piece_sizes(like.count * static_cast<int64_t>(size_of(like.dtype)),
                                     ranks_);
}

std::unique_ptr<core::InFlight> SharedMemoryAllreduce::start(core::Batch batch) {
  if (batch.count == 0) return std::make_unique<core::FinishedFlight>();
  Situation situation;
  situation.ranks_of_host = ranks_;
  situation.bytes = batch.count * static_cast<int64_t>(size_of(batch.dtype));
  situation.cell_bytes = SmallAllreduce::payload_bytes_max(ranks_);
  const bool in_cells = choose_algorithm(situation, constants_).algorithm == Algorithm::Cells;
  return in_cells ? cells_.start(std::move(batch)) : pieces_.start(std::move(batch));
}

}  // namespace horon::ops
