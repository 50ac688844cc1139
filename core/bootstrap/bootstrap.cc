#include "horon/core/bootstrap/bootstrap.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "horon/core/base/current_error.h"
#include "horon/core/base/first_fault.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"

namespace horon::core {
namespace {

// The first line in which two texts differ, once for each.
std::pair<std::string, std::string> first_different_line(const std::string& a,
                                                         const std::string& b) {
  std::istringstream left(a);
  std::istringstream right(b);
  std::string left_line;
  std::string right_line;
  do {
    left_line.clear();
    right_line.clear();
    std::getline(left, left_line);
    std::getline(right, right_line);
  } while (left_line == right_line && (left || right));
  return {left_line, right_line};
}

}  // namespace

void require_same(const Bootstrap& bootstrap, const std::string& what, const std::string& text) {
  // The texts themselves travel only where there is a difference to name: they are long, and a job
  // may have thousands of ranks.
  const std::vector<uint64_t> hashes =
      allgather_values(bootstrap, Bootstrap::Among::Job, hash_of(text));
  const auto other = std::find_if(hashes.begin(), hashes.end(),
                                  [&](uint64_t hash) { return hash != hashes.front(); });
  if (other == hashes.end()) return;
  const auto rank = static_cast<size_t>(other - hashes.begin());
  const bool named =
      bootstrap.topology().rank == 0 || bootstrap.topology().rank == static_cast<int>(rank);
  const std::vector<std::string> texts =
      bootstrap.allgather(Bootstrap::Among::Job, named ? std::string_view(text) : "");
  const auto [first_line, other_line] = first_different_line(texts.front(), texts[rank]);
  throw Error(ErrorCode::Config, concat(what, " differs between ranks: rank 0 has '", first_line,
                                        "', rank ", rank, " has '", other_line, "'"));
}

void agree(const Bootstrap& bootstrap, const std::optional<Error>& fault) {
  std::vector<std::string> said;
  try {
    said = bootstrap.allgather(Bootstrap::Among::Job, fault_bytes(fault));
  } catch (...) {
    if (fault) throw Error(*fault);  // it came first, and may be the reason
    throw;
  }
  const std::optional<FirstFault> first = first_fault(said);
  if (!first) return;
  if (first->members.size() == said.size()) throw first->error;
  throw Error(first->error.code(),
              concat(first->error.what(), " (on ", name_ranks(first->members), ")"));
}

void run_on_all(const Bootstrap& bootstrap, const std::function<void()>& step) {
  std::optional<Error> fault;
  try {
    step();
  } catch (...) {
    fault = current_error();
  }
  agree(bootstrap, fault);
}

}  // namespace horon::core
