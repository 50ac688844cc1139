#include "horon/torch_bindings/guards/agreed_value.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/call_names.h"

namespace horon::torch_detail {
namespace {

struct Said {
  int64_t round = 0;
  double value = 0;
};

double combined(const std::vector<double>& values, AgreeOn how) {
  double result = values.front();
  if (how == AgreeOn::FirstRank) return result;
  for (size_t i = 1; i < values.size(); ++i) {
    if (how == AgreeOn::Mean) result += values[i];
    // A NaN wins: hidden, it would make a diverged rank look well.
    if (how == AgreeOn::Min && !(values[i] >= result) && !std::isnan(result)) result = values[i];
    if (how == AgreeOn::Max && !(values[i] <= result) && !std::isnan(result)) result = values[i];
  }
  return how == AgreeOn::Mean ? result / static_cast<double>(values.size()) : result;
}

}  // namespace

double agreed_value(double own, int64_t round, AgreeOn how, std::string_view kind,
                    const std::string& name, const ProcessSet& set) {
  const Said mine{round, own};
  const std::string bytes(reinterpret_cast<const char*>(&mine), sizeof(mine));
  const std::string call = given_or_counted(name, kind, set.id());
  const std::vector<std::string> all = allgather_bytes(bytes, {.name = call, .process_set = set});
  const std::vector<int> ranks = set.ranks();
  std::map<int64_t, std::vector<int>> rounds;
  std::vector<double> values;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].size() != sizeof(Said)) continue;  // this rank has joined
    Said said;
    std::memcpy(&said, all[i].data(), sizeof(said));
    rounds[said.round].push_back(ranks[i]);
    values.push_back(said.value);
  }
  if (rounds.size() == 1) return combined(values, how);
  std::string text;
  for (const auto& [number, of] : rounds) {
    text += core::concat(text.empty() ? "" : ", ", number, " on ", core::name_ranks(of));
  }
  throw Error(ErrorCode::Mismatch,
              core::concat("\"", call, "\": the ranks are at different ", "decisions: ", text,
                           ". All ranks must ask equally often"));
}

bool is_better(double value, double than, Better better, double by) {
  if (std::isnan(value)) return false;
  if (std::isnan(than)) return true;
  return better == Better::Lower ? value < than - by : value > than + by;
}

}  // namespace horon::torch_detail
