// Saving on rank 0.
//
//   horon::save0(model, "model.pt");   // all ranks call it
#pragma once

#include <string>

#include <torch/serialize.h>

#include "horon/core/base/replace_file.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/guards/archive_file.h"
#include "horon/torch_bindings/guards/rank_zero.h"

namespace horon {

// Rank 0 writes what torch::save() takes (a module, an optimizer, a tensor, ...) to the file, which
// is replaced as a whole. Collective; returns on all ranks when the file is there. If it can't be
// written (also where the disk is full) all ranks throw Error(OperationFailed), and the old file
// stays. Once rank 0 has joined the others throw Error(RankLeft).
template <class Value>
void save0(const Value& value, const std::string& path) {
  const auto write = [&](const std::string& temporary) {
    torch_detail::ArchiveFile file(temporary);
    ::torch::save(value, file.writer());
    file.finish();
  };
  on_all_ranks([&] { rank_zero_only([&] { core::replace_file(path, write); }); },
               {.name = "save0", .worker = 0});
}

}  // namespace horon
