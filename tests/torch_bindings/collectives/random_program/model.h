// What a call must give, worked out by one process from the inputs of all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/tests/torch_bindings/collectives/random_program/program.h"

namespace horon::random_program {

// What a rank puts in: small integers.
at::Tensor input(const Call& call, size_t part, int rank);

// The results of the parts on a rank.
std::vector<at::Tensor> expected(const Call& call, int rank);

// Rows of the first part that came from each member.
std::vector<int64_t> expected_splits(const Call& call, int rank);

// Exact, but for averages of floating types.
bool agrees(const Call& call, const at::Tensor& got, const at::Tensor& want);

}  // namespace horon::random_program
