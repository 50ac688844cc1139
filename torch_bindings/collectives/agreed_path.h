// A path that all ranks give to a call, and that one of them alone reads or writes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "horon/ops/session/process_set.h"

namespace horon::torch_detail {

// A path as a rank gives it: as written, and as an absolute path, since ranks may have different
// working directories. Two paths are the same if either form is: "run", "./run/" and
// "/home/me/run".
struct GivenPath {
  std::string written;
  std::string absolute;

  bool is_same(const GivenPath& other) const {
    return written == other.written || absolute == other.absolute;
  }
};
GivenPath given_path(const std::string& path);

// Which ranks give a path.
struct Givers {
  GivenPath path;
  std::vector<int> ranks;
};
void add_giver(std::vector<Givers>& givers, GivenPath path, int rank);
// "run" on rank 0, "other" on ranks 1 and 2; of many paths the first ones.
std::string text_of(const std::vector<Givers>& givers);

// Returns if all ranks give the same path. Else throws Error(Mismatch) with one text on all ranks:
// which paths, and of which ranks. Without this check, what the other ranks mean to write would be
// lost in silence. `cure` (what to do about it) ends the text. One small collective.
void require_same_path(const std::string& call, const std::string& path, std::string_view cure,
                       const ProcessSet& set);

}  // namespace horon::torch_detail
