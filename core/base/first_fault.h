// One rank's failure is everybody's: how an Error travels to the other ranks, and which one of
// several they all throw.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "horon/core/base/error.h"

namespace horon::core {

// What a rank says of a step that can fail on one rank alone. Empty: it went well.
std::string fault_bytes(const std::optional<Error>& fault);

struct FirstFault {
  Error error;               // of the lowest rank that failed
  std::vector<int> members;  // indices of all that failed with the same error, ascending
};

// `said`: by each member, in the order of ranks. The same result on every rank; empty if all went
// well.
std::optional<FirstFault> first_fault(std::span<const std::string> said);

}  // namespace horon::core
