#include "horon/torch_bindings/state/manifest.h"

#include <algorithm>
#include <sstream>

#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/bytes.h"

namespace horon::torch_detail {
namespace {

using core::concat;

// FNV-1a, 64 bits. The length of each line goes in as well, so that lines can't flow into one
// another.
uint64_t hash_lines(const std::vector<std::string>& lines) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (const std::string& line : lines) {
    for (const char c : line) add(static_cast<unsigned char>(c));
    for (size_t rest = line.size(), i = 0; i < sizeof(rest); ++i, rest >>= 8) add(rest & 0xff);
  }
  return hash;
}

bool all_equal(const std::string& name, uint64_t hash, const ProcessSet& set) {
  const std::string own(reinterpret_cast<const char*>(&hash), sizeof(hash));
  const auto all = allgather_bytes(own, {.name = name, .process_set = set});
  return std::all_of(all.begin(), all.end(), [&](const std::string& one) { return one == own; });
}

// What this rank says otherwise than rank `first`; empty if nothing.
std::string first_differing_line(const std::vector<std::string>& own,
                                 const std::string& all_of_first, int first) {
  std::istringstream lines(all_of_first);
  const auto quoted = [](bool there, const std::string& line) {
    return there ? concat("'", line, "'") : std::string("nothing more");
  };
  for (size_t i = 0;; ++i) {
    std::string of_first;
    const bool first_has = static_cast<bool>(std::getline(lines, of_first));
    const bool own_has = i < own.size();
    if (!first_has && !own_has) return {};
    if (first_has && own_has && own[i] == of_first) continue;
    return concat("rank ", rank(), " has ", quoted(own_has, own_has ? own[i] : of_first),
                  " where rank ", first, " has ", quoted(first_has, of_first));
  }
}

}  // namespace

void throw_together(ErrorCode code, const std::string& call, const std::string& own_error,
                    const ProcessSet& set) {
  const std::string own = own_error.empty() ? own_error : concat(call, ": ", own_error);
  for (const std::string& error :
       allgather_bytes(own, {.name = call + ".errors", .process_set = set})) {
    if (!error.empty()) throw Error(code, error);
  }
}

void require_same_lines(const std::string& call, const std::vector<std::string>& lines,
                        const ProcessSet& set) {
  if (all_equal(call + ".agree", hash_lines(lines), set)) return;
  std::string joined;
  for (const std::string& line : lines) joined += line + '\n';
  const ObjectOptions options{
      .name = call + ".manifest", .root = set.ranks().front(), .process_set = set};
  const std::string of_first = broadcast_bytes(joined, options);
  throw_together(ErrorCode::Mismatch, call, first_differing_line(lines, of_first, options.root),
                 set);
}

}  // namespace horon::torch_detail
