#include "horon/torch_bindings/gradients/replica_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/gradients/round_agreement.h"
#include "horon/torch_bindings/gradients/sampled_numbers.h"

namespace horon::torch_detail {
namespace {

// Calls visit(slot number, index of a real number) for those whose turn it is: of each
// parameter that is wanted at least one, so that what a step changes differently is seen in the
// next round.
template <class Wanted, class Visit>
void for_each_sampled(const std::deque<GradientSlot>& slots, uint64_t number, const Wanted& wanted,
                      const Visit& visit) {
  if (slots.empty()) return;
  const size_t of_each = std::max<size_t>(kElementsInRound / slots.size(), 1);
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    const at::Tensor& parameter = slots[slot].parameter();
    if (parameter.numel() == 0 || !wanted(parameter)) continue;
    for_each_spread(parameter, of_each, number * 7919, [&](int64_t index) { visit(slot, index); });
  }
}

bool is_trained(const at::Tensor& parameter) { return parameter.requires_grad(); }

// Of a few elements, the largest absolute value.
double magnitude(const at::Tensor& parameter) {
  constexpr size_t looked_at = 16;
  double largest = 0;
  for_each_spread(parameter, looked_at, 0, [&](int64_t index) {
    const double value = std::abs(real_number(parameter, index));
    if (value < kNotFinite) largest = std::max(largest, value);
  });
  return largest;
}

std::string text_of(double value) {
  return value == kNotFinite ? "not finite" : core::concat(value);
}

}  // namespace

uint64_t ReplicaCheck::fingerprint(const std::deque<GradientSlot>& slots, uint64_t number) {
  largest_.resize(slots.size());
  Fingerprint fingerprint;
  for_each_sampled(slots, number, is_trained, [&](size_t slot, int64_t index) {
    const double value = real_number(slots[slot].parameter(), index);
    fingerprint.add(std::bit_cast<uint64_t>(value));
    const double size = std::abs(value);
    if (size > largest_[slot] && size < kNotFinite) largest_[slot] = size;
  });
  // Only the lowest 16 bits travel; one more word mixes the last element into them.
  fingerprint.add(number);
  return fingerprint.value();
}

// Collective.
ReplicaCheck::Unlike ReplicaCheck::first_unlike(const std::string& name,
                                                const std::deque<GradientSlot>& slots,
                                                const GradientSettings& settings, uint64_t number) {
  largest_.resize(slots.size());
  // A parameter may be frozen on some ranks at the moment: all send as many numbers, and those that
  // train it are compared.
  const auto all = [](const at::Tensor&) { return true; };
  constexpr double nothing = -std::numeric_limits<double>::infinity();
  std::vector<double> of_ranks;  // value, -value and magnitude of each
  for_each_sampled(slots, number, all, [&](size_t slot, int64_t index) {
    const at::Tensor& parameter = slots[slot].parameter();
    if (!is_trained(parameter)) {
      of_ranks.insert(of_ranks.end(), 3, nothing);
      return;
    }
    const double value = real_number(parameter, index);
    largest_[slot] = std::max(largest_[slot], magnitude(parameter));
    of_ranks.insert(of_ranks.end(), {value, -value, largest_[slot]});
  });
  of_ranks = largest_of_ranks(settings.set, name, std::move(of_ranks));
  Unlike unlike;
  size_t at = 0;
  for_each_sampled(slots, number, all, [&](size_t slot, int64_t index) {
    const double spread = of_ranks[at] + of_ranks[at + 1];
    const double tolerance =
        of_ranks[at + 2] * rounding_of_replicas(slots[slot].parameter().scalar_type(), number);
    at += 3;
    if (unlike.slot == nullptr && spread > tolerance) unlike = {&slots[slot], index, tolerance};
  });
  return unlike;
}

// A step rounds by half a unit in the last place on each rank, now up and now down, so differences
// grow with the root of the number of steps. Optimizers compute in float32: a 16-bit value differs
// only where the float32 one lies at the edge between two values, which is rare.
double rounding_of_replicas(at::ScalarType dtype, uint64_t rounds) {
  const double root = std::sqrt(static_cast<double>(rounds));
  if (dtype == at::kHalf) return std::ldexp(4 + root / 32, -10);
  if (dtype == at::kBFloat16) return std::ldexp(4 + root / 32, -7);
  return std::ldexp(4 + 4 * root, -23);
}

std::optional<Error> ReplicaCheck::find_unlike(const std::string& reducer_name,
                                               const std::deque<GradientSlot>& slots,
                                               const GradientSettings& settings, uint64_t number) {
  const Unlike unlike = first_unlike(reducer_name + ".replicas", slots, settings, number);
  if (unlike.slot == nullptr) return std::nullopt;
  const at::Tensor& parameter = unlike.slot->parameter();
  const std::vector<double> values =
      gather_number(settings.set, reducer_name + ".replica", real_number(parameter, unlike.index),
                    settings.set_rank, settings.ranks.size());
  const auto first = static_cast<size_t>(
      std::find_if(values.begin(), values.end(), [](double x) { return !std::isinf(x); }) -
      values.begin());  // the others have joined
  std::vector<int> others;
  double other = 0;
  for (size_t rank = first; rank < values.size(); ++rank) {
    // The largest and the smallest are further apart than the tolerance, so one of them is further
    // than half of it from this one.
    const bool differs = std::abs(values[rank] - values[first]) > unlike.tolerance / 2;
    if (std::isinf(values[rank]) || !differs) continue;
    if (others.empty()) other = values[rank];
    others.push_back(settings.ranks[rank]);
  }
  return Error(
      ErrorCode::Mismatch,
      core::concat(
          "\"", reducer_name, "\": parameter \"", unlike.slot->name(), "\" differs on ",
          core::name_ranks(others), " from rank ", settings.ranks[first], " (element ",
          unlike.index / reals_of_each(parameter), ": ", text_of(other), " and ",
          text_of(values[first]), "). Some ranks changed parameters or gradients that others ",
          "did not, or changed them differently (another learning rate or loss scale, say), or ",
          "the ranks began with different values. Call broadcast_parameters() before training and ",
          "after loading, and after join() broadcast everything that steps change; change ",
          "gradients only after they are reduced. ",
          "HORON_CHECK_REPLICAS=0 turns this check off"));
}

}  // namespace horon::torch_detail
