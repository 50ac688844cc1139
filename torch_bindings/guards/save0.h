// Saving on rank 0.
//
//   horon::save0(model, "model.pt");        // all ranks call it
//   horon::save0(model, path, own);         // all ranks of a set, which has a model of its own
#pragma once

#include <string>

#include <torch/serialize.h>

#include "horon/core/base/replace_file.h"
#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/collectives/agreed_path.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/guards/archive_file.h"
#include "horon/torch_bindings/guards/rank_zero.h"

namespace horon {

// Rank 0 (the lowest rank of the set) writes what torch::save() takes (a module, an optimizer, a
// tensor, ...) to the file, which is replaced as a whole. Collective; returns on all ranks when the
// file is there. If it can't be written (also where the disk is full) all ranks throw
// Error(OperationFailed), and the old file stays. If the ranks give different paths all throw
// Error(Mismatch), and nothing is written. Once rank 0 has joined the others throw Error(RankLeft).
template <class Value>
void save0(const Value& value, const std::string& path, const ProcessSet& process_set = {}) {
  torch_detail::require_same_path("save0", path,
                                  "Give all ranks the same path; to save one for each process "
                                  "set, call save0(value, path, set)",
                                  process_set);
  const auto write = [&](const std::string& temporary) {
    torch_detail::ArchiveFile file(temporary);
    ::torch::save(value, file.writer());
    file.finish();
  };
  on_all_ranks(
      [&] {
        const RankZeroScope alone(process_set);
        if (alone) core::replace_file(path, write);
      },
      {.name = "save0", .process_set = process_set, .worker = process_set.ranks().front()});
}

}  // namespace horon
