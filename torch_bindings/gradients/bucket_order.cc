#include "horon/torch_bindings/gradients/bucket_order.h"

#include <algorithm>

namespace horon::torch_detail {

void ArrivalOrder::watch(size_t gradients) {
  places_.assign(gradients, kNever);
  next_ = kNever + 1;
  watches_ = true;
}

std::vector<size_t> ArrivalOrder::arrived() const {
  std::vector<size_t> order;
  for (size_t i = 0; i < places_.size(); ++i) {
    if (places_[i] != kNever) order.push_back(i);
  }
  std::ranges::sort(order, {}, [this](size_t gradient) { return places_[gradient]; });
  return order;
}

std::vector<size_t> order_of_all(std::span<const size_t> arrived, size_t gradients) {
  std::vector<size_t> order(arrived.begin(), arrived.end());
  std::vector<bool> has_come(gradients);
  for (const size_t gradient : arrived) has_come[gradient] = true;
  for (size_t i = gradients; i-- > 0;) {
    if (!has_come[i]) order.push_back(i);
  }
  return order;
}

double mean_start(const SlotGroups& buckets, std::span<const GradientLayout> layouts,
                  std::span<const size_t> arrived) {
  std::vector<size_t> place(layouts.size());  // 0: it has not come
  for (size_t i = 0; i < arrived.size(); ++i) place[arrived[i]] = i + 1;
  double waits = 0;
  double all_bytes = 0;
  for (const std::vector<size_t>& bucket : buckets) {
    size_t full_at = 0;
    double bytes = 0;
    for (const size_t gradient : bucket) {
      if (place[gradient] == 0) continue;
      full_at = std::max(full_at, place[gradient]);
      bytes += static_cast<double>(layouts[gradient].bytes());
    }
    waits += bytes * static_cast<double>(full_at);
    all_bytes += bytes;
  }
  return all_bytes == 0 ? 0 : waits / (all_bytes * static_cast<double>(arrived.size()));
}

}  // namespace horon::torch_detail
