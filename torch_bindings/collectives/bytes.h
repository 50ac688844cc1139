// Sends bytes from rank to rank. objects.h is built on it.
//
// Blocking. Every rank of the process set makes the same calls in the same order, or gives names.
// The length may differ from rank to rank, and may be 0. Any thread. Errors as in collectives.h.
#pragma once

#include <string>
#include <vector>

#include "horon/ops/session/process_set.h"

namespace horon {

struct ObjectOptions {
  // What the call is called on all ranks. Empty: "broadcast_bytes.noname.N" and alike, counted in
  // the order of the calls.
  std::string name = {};
  int root = 0;  // broadcast, gather, scatter: a rank of the world
  ProcessSet process_set = {};
};

// The root's bytes; the argument of the others is ignored.
std::string broadcast_bytes(const std::string& bytes, const ObjectOptions& options = {});
// The bytes of each rank of the set, in the order of ranks.
std::vector<std::string> allgather_bytes(const std::string& bytes,
                                         const ObjectOptions& options = {});
// As allgather_bytes() on the root; other ranks get an empty vector.
std::vector<std::string> gather_bytes(const std::string& bytes, const ObjectOptions& options = {});
// Returns this rank's part. The root gives one for each rank of the set, in the order of ranks;
// other ranks' arguments are ignored. Throws Error(InvalidArgument) on all ranks if the number of
// parts is another.
std::string scatter_bytes(const std::vector<std::string>& parts, const ObjectOptions& options = {});

}  // namespace horon
