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

std::string to_bytes(const GivenPath& path) {
  return concat(path.written, kPathEnd, path.absolute);
}

GivenPath path_from(const std::string& bytes) {
  const size_t end = bytes.find(kPathEnd);
  return {bytes.substr(0, end), bytes.substr(end + 1)};
}

}  // namespace

GivenPath given_path(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  return {without_end(path), error ? path : without_end(absolute)};
}

void add_giver(std::vector<Givers>& givers, GivenPath path, int rank) {
  const auto same = std::find_if(givers.begin(), givers.end(),
                                 [&](const Givers& one) { return one.path.is_same(path); });
  if (same == givers.end()) {
    givers.push_back({std::move(path), {rank}});
  } else {
    same->ranks.push_back(rank);
  }
}

std::string text_of(const std::vector<Givers>& givers) {
  std::string text;
  for (size_t i = 0; i < std::min(givers.size(), kPathsShown); ++i) {
    text += concat(i == 0 ? "" : ", ", '"', givers[i].path.written, "\" on ",
                   core::name_ranks(givers[i].ranks));
  }
  if (givers.size() > kPathsShown) text += concat(" and ", givers.size() - kPathsShown, " more");
  return text;
}

void require_same_path(const std::string& call, const std::string& path, std::string_view cure,
                       const ProcessSet& set) {
  (void)fault_of_call({.name = call, .process_set = set});  // throws; it knows no other fault here
  const std::vector<int> ranks = set.ranks();
  const std::string name = call + ".path";
  const NameTurn turn(name, set.id());
  const std::vector<std::string> all =
      allgather_bytes(to_bytes(given_path(path)), {.name = name, .process_set = set});
  std::vector<Givers> givers;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].empty()) add_giver(givers, path_from(all[i]), ranks[i]);  // else it has joined
  }
  if (givers.size() == 1) return;
  throw Error(ErrorCode::Mismatch,
              concat(call, ": the ranks give different paths: ", text_of(givers),
                     "; only that of rank ", ranks.front(), " would be used. ", cure));
}

}  // namespace horon::torch_detail
