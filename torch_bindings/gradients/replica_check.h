// Finds out whether the parameters have gone apart on the ranks, from a few of their elements.
//
// Replicas that receive the same gradients stay alike. They go apart where a program changes
// parameters or gradients on some ranks only, or differently: it clips what is not reduced yet,
// loads a checkpoint on one rank, forgets broadcast_parameters(). In each round of reductions the
// ranks compare a few elements, others in each round, with what they send anyway: first their bits,
// and if those differ a number made of them. Only if that differs too they look for the parameter.
//
// Rounding differs between CPUs of different kinds, so values are alike if they differ by less
// than a thousandth of their size. Frozen parameters are not compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/torch_bindings/gradients/settings.h"
#include "horon/torch_bindings/gradients/slot.h"

namespace horon::torch_detail {

// One number that is the same on ranks whose parameters are. `number` counts rounds, and chooses
// the elements: the same on all ranks.
double sample_replica(const std::deque<GradientSlot>& slots, uint64_t number);

// The bits of the same elements: equal where the parameters are, to the last bit.
uint64_t fingerprint_of_replica(const std::deque<GradientSlot>& slots, uint64_t number);

// From the sums over `ranks` ranks of the sample and of its square. One rank that differs is found
// among any number of them.
bool replicas_alike(int ranks, double sum, double sum_of_squares);

// After the samples of `number` were not alike: the error that names the first parameter among them
// that differs, and the ranks; empty if none does by itself. Collective. Throws Error.
std::optional<Error> find_unlike_replica(const std::string& reducer_name,
                                         const std::deque<GradientSlot>& slots,
                                         const GradientSettings& settings, uint64_t number);

}  // namespace horon::torch_detail
