// The rows of an alltoall in a simulated job. Each member is told only its own rows, so what all
// members have said is known only once all of them have started the alltoall.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "horon/core/negotiation/effects.h"

namespace horon::simulation {

class RowsOfAlltoall {
 public:
  // The record without what differs between members.
  core::Item common(core::Item record);
  void note_start(int rank, const core::StartBatch& start);
  // What all ranks have said about the rows of an entry of any kind, one rank after the other, once
  // `size` ranks have started the batch. Empty if what they were told does not fit together.
  std::vector<int64_t> said(const core::StartBatch& start, size_t entry, int size) const;

 private:
  std::set<core::EntryId> ids_;  // of alltoalls
  // [sequence, entry][rank]
  std::map<std::pair<uint64_t, size_t>, std::map<int, std::vector<int64_t>>> told_;
};

}  // namespace horon::simulation
