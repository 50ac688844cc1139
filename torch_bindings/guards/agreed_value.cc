#include "horon/torch_bindings/guards/agreed_value.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/call_counts.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/call_names.h"

namespace horon::torch_detail {
namespace {

using core::concat;

struct Numbers {
  int64_t step = 0;
  int64_t count = 0;
  int64_t joined = 0;  // 1: there was a join() since this rank's last decision
  double value = 0;
  int64_t options = 0;  // bytes of them
};

// Options and state travel behind the numbers.
struct Said {
  Numbers numbers;
  std::string options;
  std::string state;
};

using SaidByRank = std::map<int, Said>;  // of the ranks that have not joined

std::string to_bytes(const Said& said) {
  std::string bytes(reinterpret_cast<const char*>(&said.numbers), sizeof(Numbers));
  return bytes + said.options + said.state;
}

SaidByRank said_from(const std::vector<std::string>& all, const std::vector<int>& ranks) {
  SaidByRank said;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].size() < sizeof(Numbers)) continue;  // this rank has joined
    Said& one = said[ranks[i]];
    std::memcpy(&one.numbers, all[i].data(), sizeof(Numbers));
    const auto state = sizeof(Numbers) + static_cast<size_t>(one.numbers.options);
    one.options = all[i].substr(sizeof(Numbers), state - sizeof(Numbers));
    one.state = all[i].substr(state);
  }
  return said;
}

double combined(const SaidByRank& said, AgreeOn how) {
  double result = said.begin()->second.numbers.value;
  if (how == AgreeOn::FirstRank) return result;
  for (auto one = std::next(said.begin()); one != said.end(); ++one) {
    const double value = one->second.numbers.value;
    if (how == AgreeOn::Mean) result += value;
    // A NaN wins: hidden, it would make a diverged rank look well.
    if (how == AgreeOn::Min && !(value >= result) && !std::isnan(result)) result = value;
    if (how == AgreeOn::Max && !(value <= result) && !std::isnan(result)) result = value;
  }
  return how == AgreeOn::Mean ? result / static_cast<double>(said.size()) : result;
}

[[noreturn]] void refuse(ErrorCode code, const std::string& call, const std::string& why) {
  throw Error(code, concat("\"", call, "\": ", why));
}

void require_same_options(const std::string& call, const SaidByRank& said) {
  std::map<std::string, std::vector<int>> ranks_with;
  for (const auto& [rank, one] : said) ranks_with[one.options].push_back(rank);
  if (ranks_with.size() == 1) return;
  std::string text;
  for (const auto& [options, ranks] : ranks_with) {
    text += concat(text.empty() ? "" : "; ", core::name_ranks(ranks),
                   ranks.size() == 1 ? " has " : " have ", options);
  }
  refuse(ErrorCode::Mismatch, call,
         concat("the options of the ranks differ, so they would decide differently: ", text,
                ". Give all ranks the same options"));
}

// Throws unless a number that each rank has said is the same on all.
template <class NumberOf>
void require_same(const std::string& call, const SaidByRank& said, const NumberOf& number_of,
                  const char* cure) {
  std::map<int64_t, std::vector<int>> ranks_at;
  for (const auto& [rank, one] : said) ranks_at[number_of(one.numbers)].push_back(rank);
  if (ranks_at.size() == 1) return;
  std::string text;
  for (const auto& [number, ranks] : ranks_at) {
    text += concat(text.empty() ? "" : ", ", number, " on ", core::name_ranks(ranks));
  }
  refuse(ErrorCode::Mismatch, call,
         concat("the ranks are at different decisions: ", text,
                ". Call it equally often on all ranks", cure));
}

void require_same_states(const std::string& call, const SaidByRank& said) {
  const auto& [lowest, first] = *said.begin();
  std::vector<int> others;
  for (const auto& [rank, one] : said) {
    if (one.state != first.state) others.push_back(rank);
  }
  if (others.empty()) return;
  require_same(
      call, said, [](const Numbers& of) { return of.count + 1; },
      ", or give all the state of one rank by broadcast_state()");
  refuse(ErrorCode::Mismatch, call,
         concat(core::name_ranks(others), others.size() == 1 ? " has" : " have",
                " a different state from rank ", lowest, ", so they would decide differently. ",
                "Restore it on all ranks, or give all that of one rank by broadcast_state()"));
}

const char* name_of(AgreeOn how) {
  constexpr std::array kNames = {"FirstRank", "Mean", "Min", "Max"};
  return kNames.at(static_cast<size_t>(how));
}

}  // namespace

const char* name_of(Better better) { return better == Better::Lower ? "Lower" : "Higher"; }

Decisions::Decisions(std::string_view kind, std::string name, AgreeOn how, ProcessSet set,
                     std::string_view options)
    : kind_(kind),
      name_(std::move(name)),
      how_(how),
      set_(std::move(set)),
      options_(concat("agree_on ", name_of(how), ", ", options)) {}

AgreedDecision Decisions::agree(const OwnDecision& own) {
  const BlockingCallName name(name_, kind_, set_.id());
  const std::string& call = name.get();
  const uint64_t joins = is_initialized() ? ops::call_counts().times_forgotten(set_.id()) : 0;
  const Said mine{{.step = own.step,
                   .count = own.count,
                   .joined = joins_ && *joins_ != joins ? 1 : 0,
                   .value = own.value,
                   .options = static_cast<int64_t>(options_.size())},
                  options_,
                  own.state};
  const std::vector<std::string> all =
      allgather_bytes(to_bytes(mine), {.name = call, .process_set = set_});
  const std::vector<int> ranks = set_.ranks();
  const SaidByRank said = said_from(all, ranks);
  require_same_options(call, said);
  if (how_ == AgreeOn::FirstRank && !said.contains(ranks.front())) {
    refuse(ErrorCode::RankLeft, call,
           concat("rank ", ranks.front(), " has joined, but the ranks decide by its number ",
                  "(AgreeOn::FirstRank). Call this before join(), or decide by the numbers of ",
                  "all remaining ranks (AgreeOn::Mean, Min or Max)"));
  }
  require_same(
      call, said, [](const Numbers& of) { return of.step; }, "");
  // A rank that had joined before its first decision does not know of that join(); the others do.
  const bool after_join = std::any_of(
      said.begin(), said.end(), [](const auto& one) { return one.second.numbers.joined != 0; });
  if (!after_join) require_same_states(call, said);
  joins_ = joins;
  const auto latest = std::max_element(said.begin(), said.end(), [](const auto& a, const auto& b) {
    return a.second.numbers.count < b.second.numbers.count;
  });
  return {combined(said, how_), latest->second.numbers.count, latest->second.state};
}

bool is_better(double value, double than, Better better, double by) {
  if (std::isnan(value)) return false;
  if (std::isnan(than)) return true;
  return better == Better::Lower ? value < than - by : value > than + by;
}

}  // namespace horon::torch_detail
