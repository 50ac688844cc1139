#include "horon/tests/support/simulation/rows_of_alltoall.h"

#include "horon/core/negotiation/told_extents.h"

namespace horon::simulation {

core::Item RowsOfAlltoall::common(core::Item record) {
  auto* const plan = std::get_if<core::Plan>(&record);
  if (plan == nullptr) return record;
  for (core::PlannedBatch& batch : plan->batches) {
    for (core::PlannedEntry& entry : batch.entries) {
      const bool is_alltoall = entry.spec == nullptr ? ids_.contains(entry.id)
                                                     : entry.spec->kind == CollectiveKind::Alltoall;
      if (!is_alltoall) continue;
      if (entry.id != core::kNoId) ids_.insert(entry.id);
      entry.extents.clear();
    }
  }
  return record;
}

void RowsOfAlltoall::note_start(int rank, const core::StartBatch& start) {
  for (size_t entry = 0; entry < start.entries.size(); ++entry) {
    if (start.entries[entry].spec->kind != CollectiveKind::Alltoall) continue;
    told_[{start.sequence, entry}][rank] = start.entries[entry].extents;
  }
}

std::vector<int64_t> RowsOfAlltoall::said(const core::StartBatch& start, size_t entry,
                                          int size) const {
  const auto found = told_.find({start.sequence, entry});
  if (found == told_.end()) return start.entries[entry].extents;
  const auto ranks = static_cast<size_t>(size);
  if (found->second.size() != ranks) return {};  // some have started another collective
  const size_t parts = start.entries[entry].spec->parts.size();
  std::vector<int64_t> said;
  std::vector<int64_t> of_all(parts);
  for (const auto& [rank, told] : found->second) {
    for (size_t part = 0; part < parts; ++part) {
      for (const int64_t rows : core::ToldOfPart(told, part, ranks).sends) {
        said.push_back(rows);
        of_all[part] += rows;
      }
    }
  }
  for (const auto& [rank, told] : found->second) {
    for (size_t part = 0; part < parts; ++part) {
      const core::ToldOfPart here(told, part, ranks);
      if (here.of_all != of_all[part]) return {};
      for (size_t from = 0; from < ranks; ++from) {
        const size_t place = (from * parts + part) * ranks + static_cast<size_t>(rank);
        if (here.gets[from] != said.at(place)) return {};
      }
    }
  }
  return said;
}

}  // namespace horon::simulation
