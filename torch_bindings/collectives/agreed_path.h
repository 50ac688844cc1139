// A path that all ranks give to a call, and that one of them alone reads or writes.
#pragma once

#include <string>
#include <string_view>

#include "horon/ops/session/process_set.h"

namespace horon::torch_detail {

// Returns if all ranks give the same path. Else throws Error(Mismatch) with one text on all ranks:
// which paths, and of which ranks. Without it what the others mean to write would be lost in
// silence. A path is the same if it is so as it is written, or from the root on: "run", "./run/"
// and "/home/me/run". `cure` ends the text. One small collective.
void require_same_path(const std::string& call, const std::string& path, std::string_view cure,
                       const ProcessSet& set);

}  // namespace horon::torch_detail
