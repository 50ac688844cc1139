#include "horon/torch_bindings/collectives/agreed_path.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"

namespace horon::torch_detail {
namespace {

namespace fs = std::filesystem;
using core::concat;

constexpr size_t kPathsShown = 4;  // paths in an error text
constexpr char kPathEnd = '\0';    // of a path: no path has it within

std::string without_end(const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).string();
}

// As it is written and from the root on: ranks may have different working directories.
struct GivenPath {
  std::string written;
  std::string absolute;

  bool is_same(const GivenPath& other) const {
    return written == other.written || absolute == other.absolute;
  }
};

std::string path_bytes(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  return concat(without_end(path), kPathEnd, error ? path : without_end(absolute));
}

GivenPath path_from(const std::string& bytes) {
  const size_t end = bytes.find(kPathEnd);
  return {bytes.substr(0, end), bytes.substr(end + 1)};
}

// Which ranks give a path that is the same.
struct Givers {
  GivenPath path;
  std::vector<int> ranks;
};

std::vector<Givers> givers_of(const std::vector<std::string>& all, const std::vector<int>& ranks) {
  std::vector<Givers> givers;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].empty()) continue;  // this rank has joined
    GivenPath path = path_from(all[i]);
    const auto same = std::find_if(givers.begin(), givers.end(),
                                   [&](const Givers& one) { return one.path.is_same(path); });
    if (same == givers.end()) {
      givers.push_back({std::move(path), {ranks[i]}});
    } else {
      same->ranks.push_back(ranks[i]);
    }
  }
  return givers;
}

}  // namespace

void require_same_path(const std::string& call, const std::string& path, std::string_view cure,
                       const ProcessSet& set) {
  (void)fault_of_call({.name = call, .process_set = set});  // throws; it knows no other fault here
  const std::vector<int> ranks = set.ranks();
  const std::string name = call + ".path";
  const NameTurn turn(name, set.id());
  const std::vector<Givers> givers =
      givers_of(allgather_bytes(path_bytes(path), {.name = name, .process_set = set}), ranks);
  if (givers.size() == 1) return;
  std::string text;
  for (size_t i = 0; i < std::min(givers.size(), kPathsShown); ++i) {
    text += concat(i == 0 ? "" : ", ", '"', givers[i].path.written, "\" on ",
                   core::name_ranks(givers[i].ranks));
  }
  if (givers.size() > kPathsShown) text += concat(" and ", givers.size() - kPathsShown, " more");
  throw Error(ErrorCode::Mismatch, concat(call, ": the ranks give different paths: ", text,
                                          "; rank ", ranks.front(), " alone uses its own. ", cure));
}

}  // namespace horon::torch_detail
