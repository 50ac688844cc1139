// Whether the ranks mean the same collective under one name, and if not, one sentence that says who
// differs in what.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "horon/core/negotiation/protocol.h"

namespace horon::core {

// Begins a remark behind a tensor's name, where the strides are compared too; it ends in ")".
inline constexpr std::string_view kStridesRemark = " (strides ";

// Ignores the first dimension where each rank may choose it (has_own_rows()).
bool agree(const EntrySpec& a, const EntrySpec& b);

// `specs` holds (rank, what it said), ascending by rank, and at least two of them disagree. The
// answer names the tensor, the first field that differs, its values with the ranks that have them,
// and the cure.
std::string disagreement(const std::string& name, std::span<const std::pair<int, SpecPtr>> specs);

}  // namespace horon::core
