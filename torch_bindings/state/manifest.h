// Agreement before a group of collectives: ranks that would submit different tensors learn so at
// once, by name, instead of waiting for tensors that never come.
#pragma once

#include <string>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/ops/session/process_set.h"

namespace horon::torch_detail {

// These are collective over all ranks of the set, block, and throw what collectives throw.

// Returns if all of them give the same lines. Else throws Error(Mismatch) on every rank, with one
// text that names the call and the first line in which a rank differs from the lowest one. Costs
// one collective of 8 bytes a rank if all agree.
void require_same_lines(const std::string& call, const std::vector<std::string>& lines,
                        const ProcessSet& set = {});

// Each rank gives its own error text, empty if there is none. If any rank has one, all throw
// Error(code) with the text of the lowest such rank.
void throw_together(ErrorCode code, const std::string& call, const std::string& own_error,
                    const ProcessSet& set = {});

}  // namespace horon::torch_detail
