#include "horon/torch_bindings/gradients/equal_gradients.h"

#include <bit>

#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/gradients/sampled_numbers.h"

namespace horon::torch_detail {
namespace {

constexpr size_t kNumbers = 16;  // of each gradient

}  // namespace

void EqualGradients::see(size_t slot, const at::Tensor& gradient) {
  if (!gradient.defined() || !gradient.is_cpu() || gradient.layout() != at::kStrided) return;
  if (gradient.numel() == 0) return;
  Fingerprint fingerprint;
  fingerprint.add(slot);
  bool any = false;
  for_each_spread(gradient, kNumbers, 0, [&](int64_t index) {
    const double value = real_number(gradient, index);
    any = any || (value != 0 && value != kNotFinite);
    fingerprint.add(std::bit_cast<uint64_t>(value));
  });
  fingerprint.add(slot);  // mixes the last number into the lowest bits
  seen_ += fingerprint.value();
  if (any) has_seen_ = true;
}

std::optional<uint64_t> EqualGradients::fingerprint() const {
  if (!watches() || !has_seen_) return std::nullopt;
  return seen_;
}

void EqualGradients::begin_round() {
  seen_ = 0;
  has_seen_ = false;
}

bool EqualGradients::heard(bool alike) {
  if (!watches()) return false;
  alike_ = alike ? alike_ + 1 : kRounds;
  return alike && alike_ == kRounds;
}

}  // namespace horon::torch_detail
