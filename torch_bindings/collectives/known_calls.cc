#include "horon/torch_bindings/collectives/known_calls.h"

namespace horon::torch_detail {

std::shared_ptr<const KnownCall> KnownCalls::find(uint32_t set, const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto known = calls_.find({set, name});
  return known == calls_.end() ? nullptr : known->second.call;
}

void KnownCalls::note(uint32_t set, const std::string& name,
                      std::shared_ptr<const KnownCall> call) {
  const size_t parts = call->spec->parts.size();
  if (parts > kPartsMax) return;
  auto key = std::make_unique<const std::string>(name);
  const std::lock_guard lock(mutex_);
  const auto known = calls_.find({set, name});
  if (known != calls_.end()) {
    parts_ += parts;
    parts_ -= known->second.call->spec->parts.size();
    known->second.call.swap(call);
    return;
  }
  if (parts_ + parts > kPartsMax) {
    calls_.clear();
    parts_ = 0;
  }
  const Key view{set, *key};
  calls_.emplace(view, Kept{std::move(key), std::move(call)});
  parts_ += parts;
}

KnownCalls& known_calls() {
  static auto& all =
      *new KnownCalls;  // on the heap for ever: calls may come while the process ends
  return all;
}

}  // namespace horon::torch_detail
