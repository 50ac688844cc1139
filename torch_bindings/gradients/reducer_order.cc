// Buckets in the order in which gradients come (bucket_order.h). The lowest rank of the process set
// watches its first step, and the first one after a change of the parameters. If another order is
// better it asks for an agreement in the next round (round_agreement.h), in which it tells the
// order to the others; all make the new buckets before the round after that.
#include <utility>

#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/gradients/reducer_impl.h"

namespace horon {

using namespace torch_detail;

namespace {

// Part of a backward pass to be gained. Less is not worth new memory for all gradients.
constexpr double kSoonerMin = 0.02;

}  // namespace

// There are more parameters now. Backward reaches the last ones first.
void GradientReducer::Impl::add_to_order() {
  if (!slot_order_.empty()) {
    std::vector<size_t> order;
    for (size_t i = slots_.size(); i-- > slot_order_.size();) order.push_back(i);
    slot_order_.insert(slot_order_.begin(), order.begin(), order.end());
  }
  next_order_.reset();
  watch_order();
}

void GradientReducer::Impl::watch_order() {
  wished_order_.reset();
  if (options_.learn_bucket_order && settings_.ranks.size() > 1 && settings_.set_rank == 0) {
    arrivals_.watch(slots_.size());
  }
}

// Between two steps, on the rank that watches.
void GradientReducer::Impl::learn_order() {
  const std::vector<size_t> arrived = arrivals_.arrived();
  if (arrived.empty()) return;
  if (has_functions()) return watch_order();
  arrivals_.stop();
  if (!memory_of_graphs_.empty()) return;  // graphs write to the buckets as they are
  std::vector<size_t> order = order_of_all(arrived, slots_.size());
  const BucketBytes bytes = next_bytes_.value_or(settings_.bytes);
  const double now = mean_start(bucket_slots(), layouts_, arrived);
  const double then = mean_start(plan_buckets(layouts_, bytes, groups(), order), layouts_, arrived);
  if (now - then < kSoonerMin) return;
  core::log(core::LogLevel::Info,
            core::concat("\"", name_, "\": buckets will follow the order in which gradients come, ",
                         "not the reverse of the parameters; on average their reduction can start ",
                         "after ", static_cast<int>(100 * then), " % of a backward pass, not ",
                         static_cast<int>(100 * now), " %"));
  wished_order_ = std::move(order);
}

// In the agreement of a round, on all ranks that take part. A rank that has joined would come back
// with other buckets, so nothing changes before all take part.
void GradientReducer::Impl::hear_of_order() {
  if (totals_.participants < static_cast<int>(settings_.ranks.size())) return watch_order();
  std::vector<double> order(slots_.size(), 0);
  if (wished_order_) order.assign(wished_order_->begin(), wished_order_->end());
  wished_order_.reset();
  order = largest_of_ranks(settings_.set, name_ + ".order", std::move(order));
  next_order_.emplace(order.begin(), order.end());
}

}  // namespace horon
