// The elements of a submission that travel with its vote (core::Eager).
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/core/runtime/submission.h"

namespace horon::core {

// Whether they may. `bytes_max`: HORON_EAGER_BYTES.
bool may_travel_with_vote(const Submission& submission, int64_t bytes_max);

std::vector<std::byte> elements_of(const Submission& submission);

// Reduces what all members have sent, and writes the result where the submission wants it.
// `reduce`: SetResources::reduce. Throws Error(Internal) if a member has sent another number of
// elements.
void reduce_elements(
    const Submission& submission, std::span<const int> ranks,
    const std::vector<std::vector<std::byte>>& elements,
    const std::function<void(const Batch&, std::span<const std::byte* const>)>& reduce);

}  // namespace horon::core
