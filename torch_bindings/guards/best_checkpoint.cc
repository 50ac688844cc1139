#include "horon/torch_bindings/guards/best_checkpoint.h"

#include <algorithm>
#include <cmath>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon {

BestCheckpoint::BestCheckpoint(BestCheckpointOptions options) : options_(std::move(options)) {
  if (options_.keep < 1) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("best checkpoint: keep is ", options_.keep, "; give 1 or more"));
  }
}

CheckpointDecision BestCheckpoint::judge(int64_t step, double value) {
  const double agreed = torch_detail::agreed_value(
      value, step, options_.agree_on, "best_checkpoint", options_.name, options_.process_set);
  CheckpointDecision decision;
  if (std::isnan(agreed)) return decision;
  // A step that is made again after a restart would be saved under the name of the one before.
  const auto same =
      std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.step == step; });
  if (same != kept_.end()) {
    if (!torch_detail::is_better(agreed, same->value, options_.better)) return decision;
    kept_.erase(same);
  }
  const auto place = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& other) {
    return torch_detail::is_better(agreed, other.value, options_.better);
  });
  const auto keep = static_cast<size_t>(options_.keep);
  if (place == kept_.end() && kept_.size() >= keep) return decision;
  kept_.insert(place, {step, agreed});
  decision.save = true;
  while (kept_.size() > keep) {
    decision.remove.push_back(kept_.back().step);
    kept_.pop_back();
  }
  return decision;
}

}  // namespace horon
