#include "horon/ops/hierarchical/host_cells.h"

namespace horon::ops {

HostCells::HostCells(core::LocalGroup& group, std::byte* area)
    : ranks_(group.local_size()),
      progress_(group, area),
      reuse_(group, area + Waiters::area_bytes(ranks_)),
      cells_(area + 2 * Waiters::area_bytes(ranks_)) {}

size_t HostCells::cell_bytes(int ranks) {
  return static_cast<size_t>(ranks) * (sizeof(Contribution) + 2 * sizeof(core::SharedCounter));
}

size_t HostCells::bytes(int ranks) {
  return 2 * Waiters::area_bytes(ranks) + kCells * cell_bytes(ranks);
}

std::byte* HostCells::cell(uint64_t index) const { return cells_ + index * cell_bytes(ranks_); }

HostCells::Contribution& HostCells::contribution(uint64_t index, int rank) const {
  return reinterpret_cast<Contribution*>(cell(index))[rank];
}

std::atomic<uint64_t>& HostCells::over(uint64_t index, int lane) const {
  auto* const counters = reinterpret_cast<core::SharedCounter*>(&contribution(index, ranks_));
  return counters[lane].value;
}

std::atomic<uint64_t>& HostCells::left(uint64_t index, int rank) const {
  return over(index, ranks_ + rank);
}

}  // namespace horon::ops
