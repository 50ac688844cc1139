#include "horon/torch_bindings/guards/best_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include <ATen/ops/empty.h>
#include <torch/serialize/archive.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon {

namespace {

using Kept = BestCheckpoint::Kept;
static_assert(std::is_trivially_copyable_v<Kept> && sizeof(Kept) == 16, "its bytes are compared");

std::string to_bytes(const std::vector<Kept>& kept) {
  return {reinterpret_cast<const char*>(kept.data()), kept.size() * sizeof(Kept)};
}

std::vector<Kept> kept_from(const std::string& bytes) {
  std::vector<Kept> kept(bytes.size() / sizeof(Kept));
  if (!kept.empty()) std::memcpy(kept.data(), bytes.data(), bytes.size());
  return kept;
}

std::string shown(const BestCheckpointOptions& options) {
  return core::concat("better ", torch_detail::name_of(options.better), ", keep ", options.keep);
}

}  // namespace

BestCheckpoint::BestCheckpoint(BestCheckpointOptions options)
    : options_(std::move(options)),
      decisions_("best_checkpoint", options_.name, options_.agree_on, options_.process_set,
                 shown(options_)) {
  if (options_.keep < 1) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("best checkpoint: keep is ", options_.keep, "; give 1 or more"));
  }
}

CheckpointDecision BestCheckpoint::judge(int64_t step, double value) {
  const torch_detail::AgreedDecision all =
      decisions_.agree({.value = value, .step = step, .count = judged_, .state = to_bytes(kept_)});
  judged_ = all.count + 1;
  set_kept(kept_from(all.state));
  std::vector<Kept> before = kept_;
  const double agreed = all.value;
  CheckpointDecision decision;
  if (std::isnan(agreed)) return decision;
  // A step that is made again after a restart would be saved under the same name as before.
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
  saved_ = step;
  before_ = std::move(before);
  while (kept_.size() > keep) {
    decision.remove.push_back(kept_.back().step);
    kept_.pop_back();
  }
  return decision;
}

void BestCheckpoint::forget(int64_t step) {
  if (saved_ != step) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("best checkpoint: forget(", step, "), but the last decision was ",
                             saved_ ? core::concat("to save step ", *saved_) : "not to save"));
  }
  set_kept(std::move(before_));
}

void BestCheckpoint::set_kept(std::vector<Kept> kept) {
  kept_ = std::move(kept);
  saved_.reset();
}

void BestCheckpoint::save(::torch::serialize::OutputArchive& archive) const {
  const auto count = static_cast<int64_t>(kept_.size());
  at::Tensor steps = at::empty({count}, at::kLong);
  at::Tensor values = at::empty({count}, at::kDouble);
  for (size_t i = 0; i < kept_.size(); ++i) {
    steps.mutable_data_ptr<int64_t>()[i] = kept_[i].step;
    values.mutable_data_ptr<double>()[i] = kept_[i].value;
  }
  archive.write("judged", c10::IValue(judged_));
  archive.write("steps", steps);
  archive.write("values", values);
}

void BestCheckpoint::load(::torch::serialize::InputArchive& archive) {
  c10::IValue judged;
  at::Tensor steps, values;
  if (!archive.try_read("judged", judged) || !archive.try_read("steps", steps) ||
      !archive.try_read("values", values) || !judged.isInt() || steps.dim() != 1 ||
      steps.scalar_type() != at::kLong || values.scalar_type() != at::kDouble ||
      values.sizes() != steps.sizes()) {
    throw Error(ErrorCode::InvalidArgument,
                "best checkpoint: the archive holds no state of a BestCheckpoint");
  }
  steps = steps.cpu().contiguous();
  values = values.cpu().contiguous();
  std::vector<Kept> loaded;
  for (int64_t i = 0; i < steps.numel(); ++i) {
    loaded.push_back({steps.const_data_ptr<int64_t>()[i], values.const_data_ptr<double>()[i]});
  }
  set_kept(std::move(loaded));
  judged_ = judged.toInt();
}

::torch::serialize::OutputArchive& operator<<(::torch::serialize::OutputArchive& archive,
                                              const BestCheckpoint& best) {
  best.save(archive);
  return archive;
}

::torch::serialize::InputArchive& operator>>(::torch::serialize::InputArchive& archive,
                                             BestCheckpoint& best) {
  best.load(archive);
  return archive;
}

}  // namespace horon
