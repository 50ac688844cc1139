#include "horon/torch_bindings/collectives/rank_agreement.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <locale>
#include <map>
#include <sstream>

#include "horon/core/base/collective_ban.h"
#include "horon/core/base/first_fault.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/call_names.h"

namespace horon::torch_detail {
namespace {

using core::concat;

constexpr size_t kShown = 5;  // of a list in an error text

// Texts travel after their length, numbers before a space.
void write(std::ostream& out, const std::string& text) { out << text.size() << ' ' << text; }

std::string read_text(std::istream& in) {
  size_t length = 0;
  in >> length;
  in.get();
  std::string text(length, '\0');
  in.read(text.data(), static_cast<std::streamsize>(length));
  return text;
}

uint64_t summary(const std::vector<Fact>& facts) {
  std::vector<const Fact*> sorted;
  for (const Fact& fact : facts) sorted.push_back(&fact);
  std::sort(sorted.begin(), sorted.end(),
            [](const Fact* a, const Fact* b) { return a->what < b->what; });
  Fingerprint fingerprint;
  for (const Fact* fact : sorted) {
    fingerprint.add(fact->what);
    fingerprint.add(fact->value);
    fingerprint.add(fact->content);
  }
  return fingerprint.value();
}

std::string to_text(const std::vector<Fact>& facts) {
  core::TextStream out;
  for (const Fact& fact : facts) {
    out << fact.content << ' ';
    write(out, fact.what);
    write(out, fact.value);
  }
  return std::move(out).str();
}

std::vector<Fact> facts_from(const std::string& text) {
  std::istringstream in(text);
  in.imbue(std::locale::classic());
  std::vector<Fact> facts;
  for (uint64_t content = 0; in >> content;) {
    Fact fact;
    fact.what = read_text(in);
    fact.value = read_text(in);
    fact.content = content;
    facts.push_back(std::move(fact));
  }
  return facts;
}

// How a rank's facts differ from those of the lowest rank.
struct Difference {
  size_t first = 0;  // index of the lowest rank's fact
  size_t count = 0;  // differing facts that both have; 0: `first` and `value` are unused
  std::string value;
  std::string missing, extra;  // lists: what only the lowest rank has, what only this one has
};

std::string list_missing(const std::vector<Fact>& from, const std::map<std::string, Fact>& in) {
  std::string text;
  size_t count = 0;
  for (const Fact& fact : from) {
    if (in.contains(fact.what) || ++count > kShown) continue;
    text += concat(count == 1 ? "" : ", ", fact.what);
  }
  return count > kShown ? concat(text, " and ", count - kShown, " more") : text;
}

std::map<std::string, Fact> index_of(const std::vector<Fact>& facts) {
  std::map<std::string, Fact> index;
  for (const Fact& fact : facts) index.emplace(fact.what, fact);
  return index;
}

std::string difference_as_text(const std::vector<Fact>& lowest, const std::vector<Fact>& own) {
  const std::map<std::string, Fact> mine = index_of(own);
  Difference difference;
  for (size_t i = 0; i < lowest.size(); ++i) {
    const auto found = mine.find(lowest[i].what);
    if (found == mine.end() || found->second == lowest[i]) continue;
    if (difference.count++ > 0) continue;
    difference.first = i;
    difference.value = found->second.value;
  }
  core::TextStream out;
  out << difference.first << ' ' << difference.count << ' ';
  write(out, difference.value);
  write(out, list_missing(lowest, mine));
  write(out, list_missing(own, index_of(lowest)));
  return std::move(out).str();
}

Difference difference_from(const std::string& text) {
  std::istringstream in(text);
  in.imbue(std::locale::classic());
  Difference difference;
  in >> difference.first >> difference.count;
  difference.value = read_text(in);
  difference.missing = read_text(in);
  difference.extra = read_text(in);
  return difference;
}

// Names the first fact of the lowest rank that differs on other ranks; empty if there is none.
std::string explain_first(const std::vector<Fact>& lowest,
                          const std::map<int, Difference>& differences, int lowest_rank) {
  size_t first = lowest.size();
  size_t count = 0;
  for (const auto& [rank, difference] : differences) {
    if (difference.count > 0) first = std::min(first, difference.first);
    count = std::max(count, difference.count);
  }
  if (first == lowest.size()) return {};
  const Fact& fact = lowest[first];
  std::vector<int> others;
  std::string values;
  for (const auto& [rank, difference] : differences) {
    // It is the first difference of every rank on which it differs.
    if (difference.count == 0 || difference.first != first) continue;
    others.push_back(rank);
    if (!values.empty() || difference.value == fact.value) continue;
    values = concat(" (", fact.value, " on rank ", lowest_rank, ", ", difference.value, " on rank ",
                    rank, ")");
  }
  std::string text =
      concat(fact.what, " of rank ", lowest_rank, " differs on ", core::name_ranks(others), values);
  if (count > 1) text += concat("; ", count, " differ in all");
  return text;
}

std::string explain(const std::vector<Fact>& lowest, const std::map<int, Difference>& differences,
                    int lowest_rank) {
  std::string text = explain_first(lowest, differences, lowest_rank);
  const auto add = [&text](const std::string& more) {
    text += concat(text.empty() ? "" : "; ", more);
  };
  for (const auto& [rank, difference] : differences) {
    if (!difference.missing.empty()) {
      add(concat("rank ", rank, " has no ", difference.missing, ", which rank ", lowest_rank,
                 " has"));
    }
    if (!difference.extra.empty()) {
      add(concat("rank ", rank, " has ", difference.extra, ", which rank ", lowest_rank,
                 " does not have"));
    }
  }
  return text;
}

std::string name_of(const AgreementOptions& options) {
  return options.name.empty() ? "on_all_ranks" : options.name;
}

// What each rank says, by rank. Ranks that have joined say nothing.
std::map<int, std::string> say(const std::string& own, const std::string& name,
                               const ProcessSet& set) {
  const std::vector<int> ranks = set.ranks();
  const std::vector<std::string> all = allgather_bytes(own, {.name = name, .process_set = set});
  std::map<int, std::string> said;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].empty()) said.emplace(ranks[i], all[i]);
  }
  return said;
}

}  // namespace

void Fingerprint::add(const void* data, size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  const size_t length = bytes;
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), from += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, from, sizeof(word));
    add(word);
  }
  uint64_t rest = 0;
  for (size_t i = 0; i < bytes; ++i) rest = rest << 8 | from[i];
  add(rest);
  add(length);
}

std::optional<Error> fault_of_call(const AgreementOptions& options) {
  core::refuse_if_banned(name_of(options));
  ops::runtime().require_member(options.process_set.id());
  if (!options.worker) return std::nullopt;
  const std::vector<int> ranks = options.process_set.ranks();
  if (std::binary_search(ranks.begin(), ranks.end(), *options.worker)) return std::nullopt;
  return Error(ErrorCode::InvalidArgument,
               concat("the worker, rank ", *options.worker,
                      ", is not in the process set, whose ranks are ", core::list_ranks(ranks)));
}

void throw_together(const std::optional<Error>& own, const AgreementOptions& options) {
  const ProcessSet& set = options.process_set;
  const std::string name = name_of(options);
  const NameTurn turn(name, set.id());
  // A byte before the fault: a rank that has joined says nothing at all.
  const std::map<int, std::string> said = say(concat('.', core::fault_bytes(own)), name, set);
  std::vector<std::string> faults;
  for (const auto& [rank, text] : said) faults.push_back(text.substr(1));
  const std::string begins = concat(options.name, options.name.empty() ? "" : ": ");
  if (const std::optional<core::FirstFault> first = core::first_fault(faults)) {
    const int rank = std::next(said.begin(), static_cast<int>(first->members.front()))->first;
    throw Error(first->error.code(), concat(begins, "on rank ", rank, ": ", first->error.what()));
  }
  if (!options.worker || said.contains(*options.worker)) return;
  throw Error(ErrorCode::RankLeft,
              concat(begins, "rank ", *options.worker, " has joined, and it alone does the work, ",
                     "so nothing was done. Call this before join()"));
}

void throw_together(ErrorCode code, const std::string& call, const std::string& own_error,
                    const ProcessSet& set) {
  std::optional<Error> own;
  if (!own_error.empty()) own.emplace(code, own_error);
  throw_together(own, {.name = call, .process_set = set});
}

void require_agreement(const std::string& call, const std::vector<Fact>& facts,
                       const std::string& own_error, const ProcessSet& set) {
  const std::string name = call + ".agree";
  const NameTurn turn(name, set.id());
  const uint64_t words[] = {summary(facts), own_error.empty() ? 1U : 0U};
  const std::string own(reinterpret_cast<const char*>(words), sizeof(words));
  const std::map<int, std::string> said = say(own, name, set);
  // Every rank sees whether some rank is wrong or differs, so all return here, or none.
  const auto is_own = [&own](const auto& of_rank) { return of_rank.second == own; };
  if (own_error.empty() && std::all_of(said.begin(), said.end(), is_own)) return;
  throw_together(ErrorCode::InvalidArgument, call, own_error, set);
  const int lowest_rank = said.begin()->first;
  const std::vector<Fact> lowest = facts_from(broadcast_bytes(
      to_text(facts), {.name = name + ".facts", .root = lowest_rank, .process_set = set}));
  std::map<int, Difference> differences;
  for (const auto& [rank, text] :
       say(difference_as_text(lowest, facts), name + ".differences", set)) {
    differences.emplace(rank, difference_from(text));
  }
  throw Error(ErrorCode::Mismatch, concat(call, ": ", explain(lowest, differences, lowest_rank)));
}

}  // namespace horon::torch_detail
