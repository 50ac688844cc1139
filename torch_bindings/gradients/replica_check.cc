#include "horon/torch_bindings/gradients/replica_check.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/gradients/round_agreement.h"

namespace horon::torch_detail {
namespace {

// Of scaled() values: a thousandth of a value's size, as differences of a logarithm.
constexpr double kTolerance = 1e-3;
// Bounds the cost of a round for models of very many parameters; all have their turn.
constexpr size_t kParametersInRound = 256;
// Stands for NaN and Inf, which are alike on all ranks or not, as other values are.
constexpr double kNotFinite = 1e3;

double element(const at::Tensor& tensor, int64_t index) {
  const void* const data = tensor.const_data_ptr();
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return static_cast<const float*>(data)[index];
    case at::kDouble:
      return static_cast<const double*>(data)[index];
    case at::kHalf:
      return static_cast<const c10::Half*>(data)[index];
    case at::kBFloat16:
      return static_cast<const c10::BFloat16*>(data)[index];
    default:
      return 0;
  }
}

// A value on a scale on which equal relative differences are equal, so that parameters of all sizes
// count alike; 16-bit types are rounded more coarsely and count less.
double scaled(const at::Tensor& tensor, int64_t index) {
  const double value = element(tensor, index);
  if (!std::isfinite(value)) return kNotFinite;
  return std::asinh(value * 1e6) * (tensor.element_size() < 4 ? 1.0 / 16 : 1);
}

// Calls visit(slot, place of an element) for the parameters whose turn it is.
template <class Visit>
void for_each_sampled(const std::deque<GradientSlot>& slots, uint64_t number, const Visit& visit) {
  const size_t count = std::min(slots.size(), kParametersInRound);
  const size_t first = slots.empty() ? 0 : number * count % slots.size();
  for (size_t i = 0; i < count; ++i) {
    const GradientSlot& slot = slots[(first + i) % slots.size()];
    const at::Tensor& parameter = slot.parameter();
    if (parameter.numel() == 0 || !parameter.requires_grad()) continue;
    // Of a tensor with gaps or overlaps the first element is one for certain.
    const auto elements = static_cast<uint64_t>(parameter.numel());
    const uint64_t place = parameter.is_non_overlapping_and_dense() ? number * 7919 % elements : 0;
    visit(slot, static_cast<int64_t>(place));
  }
}

bool alike(double a, double b) { return std::abs(a - b) <= kTolerance; }

}  // namespace

double sample_replica(const std::deque<GradientSlot>& slots, uint64_t number) {
  double sum = 0;
  double factor = 1;
  for_each_sampled(slots, number, [&](const GradientSlot& slot, int64_t place) {
    // Unlike factors, so that two parameters that were exchanged are seen.
    factor = factor >= 2 ? factor - 0.9 : factor + 0.3;
    sum += factor * scaled(slot.parameter(), place);
  });
  return sum;
}

uint64_t fingerprint_of_replica(const std::deque<GradientSlot>& slots, uint64_t number) {
  Fingerprint fingerprint;
  for_each_sampled(slots, number, [&](const GradientSlot& slot, int64_t place) {
    fingerprint.add(std::bit_cast<uint64_t>(element(slot.parameter(), place)));
  });
  return fingerprint.value();
}

bool replicas_alike(int ranks, double sum, double sum_of_squares) {
  const double mean = sum / ranks;
  return sum_of_squares - ranks * mean * mean <= kTolerance * kTolerance;
}

std::optional<Error> find_unlike_replica(const std::string& reducer_name,
                                         const std::deque<GradientSlot>& slots,
                                         const GradientSettings& settings, uint64_t number) {
  std::vector<double> both;  // value and -value of each
  for_each_sampled(slots, number, [&](const GradientSlot& slot, int64_t place) {
    const double value = scaled(slot.parameter(), place);
    both.push_back(value);
    both.push_back(-value);
  });
  both = largest_of_ranks(settings.set, reducer_name + ".replicas", std::move(both));
  const GradientSlot* unlike = nullptr;
  int64_t unlike_place = 0;
  double mine = 0;
  size_t i = 0;
  for_each_sampled(slots, number, [&](const GradientSlot& slot, int64_t place) {
    const bool found = unlike == nullptr && !alike(both[i], -both[i + 1]);
    i += 2;
    if (!found) return;
    unlike = &slot;
    unlike_place = place;
    mine = scaled(slot.parameter(), place);
  });
  if (unlike == nullptr) return std::nullopt;
  const auto gather = [&](const char* what, double number_of_mine) {
    return gather_number(settings.set, core::concat(reducer_name, what), number_of_mine,
                         settings.set_rank, settings.ranks.size());
  };
  const std::vector<double> values = gather(".replica", mine);
  const double own = element(unlike->parameter(), unlike_place);
  const std::vector<double> elements = gather(".element", std::isnan(own) ? kNotFinite : own);
  const auto first = static_cast<size_t>(
      std::find_if(values.begin(), values.end(), [](double x) { return !std::isinf(x); }) -
      values.begin());  // the others have joined
  std::vector<int> others;
  double other = 0;
  for (size_t rank = first; rank < values.size(); ++rank) {
    if (std::isinf(values[rank]) || alike(values[rank], values[first])) continue;
    if (others.empty()) other = elements[rank];
    others.push_back(settings.ranks[rank]);
  }
  return Error(
      ErrorCode::Mismatch,
      core::concat("\"", reducer_name, "\": parameter \"", unlike->name(), "\" differs on ",
                   others.size() == 1 ? "rank " : "ranks ", core::list_ranks(others), " from rank ",
                   settings.ranks[first], " (element ", unlike_place, ": ", other, " and ",
                   elements[first], "). Parameters or gradients were changed on some ranks ",
                   "only, or in different ways, or the ranks did not begin alike. Call ",
                   "broadcast_parameters() before training and after loading; change gradients ",
                   "only when they are reduced. {.check_replicas = false} or ",
                   "HORON_CHECK_REPLICAS=0 turns this check off"));
}

}  // namespace horon::torch_detail
