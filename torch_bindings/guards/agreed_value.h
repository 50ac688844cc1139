// One number that all ranks decide by, so that they decide alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "horon/ops/session/process_set.h"

namespace horon {

enum class Better : uint8_t { Lower, Higher };

// Which number counts where those of the ranks differ. Ranks that have joined have none.
enum class AgreeOn : uint8_t {
  // That of rank 0 (of the lowest rank of the set); the others may give anything. Once that rank
  // has joined, to decide is an Error(RankLeft) on the others.
  FirstRank,
  Mean,  // of the ranks' numbers, each counting once
  Min,
  Max,
};

namespace torch_detail {

const char* name_of(Better better);

// What a rank brings to a decision.
struct OwnDecision {
  double value = 0;
  int64_t step = 0;   // the same on all ranks
  int64_t count = 0;  // of this rank's decisions before
  std::string state;  // of the guard, as those decisions have left it
};

// What all ranks decide by.
struct AgreedDecision {
  double value = 0;  // with the same bits on all ranks
  int64_t count = 0;
  std::string state;
};

// The decisions of one guard. Each of its ranks holds the state, which every decision changes
// alike. While a rank waits in join() it misses decisions; afterwards it takes over the state of a
// rank that has missed none, which is one with the most decisions.
class Decisions {
 public:
  // Unnamed: "KIND.noname.N". `kind` lives as long as the program. `options`: what else the ranks
  // decide by, as an error shows it.
  Decisions(std::string_view kind, std::string name, AgreeOn how, ProcessSet set,
            std::string_view options);

  // One collective. Throws on all ranks: Error(Mismatch) if the options or the steps differ, or if
  // the states differ without a join() in between; Error(RankLeft) with AgreeOn::FirstRank if that
  // rank has joined. And what collectives throw.
  AgreedDecision agree(const OwnDecision& own);

 private:
  const std::string_view kind_;
  const std::string name_;
  const AgreeOn how_;
  const ProcessSet set_;
  const std::string options_;
  std::optional<uint64_t> joins_;  // as of the last decision; nothing before the first
};

// A NaN is never better, and anything is better than a NaN.
bool is_better(double value, double than, Better better, double by = 0);

}  // namespace torch_detail
}  // namespace horon
