// One number that all ranks decide by, so that they decide alike.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "horon/ops/session/process_set.h"

namespace horon {

enum class Better : uint8_t { Lower, Higher };

// Which number counts where those of the ranks differ.
enum class AgreeOn : uint8_t {
  FirstRank,  // that of rank 0 (of the lowest rank of the set); the others may give anything
  Mean,       // of the ranks' numbers, each counting once
  Min,
  Max,
};

namespace torch_detail {

// The number, with the same bits on all ranks of the set. `round` tells which decision this is: all
// ranks must be at the same one. One collective. Unnamed: "KIND.noname.N". Throws Error(Mismatch)
// on all ranks if the rounds differ, and what collectives throw.
double agreed_value(double own, int64_t round, AgreeOn how, std::string_view kind,
                    const std::string& name, const ProcessSet& set);

// A NaN is never better, and anything is better than a NaN.
bool is_better(double value, double than, Better better, double by = 0);

}  // namespace torch_detail
}  // namespace horon
