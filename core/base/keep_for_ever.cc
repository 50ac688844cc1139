#include "horon/core/base/keep_for_ever.h"

#include <mutex>
#include <utility>
#include <vector>

namespace horon::core {
namespace {

struct Kept {
  std::mutex mutex;
  std::vector<std::shared_ptr<void>> owners;
};

// Its destructor does nothing: the last resort where there is no memory for one more owner.
union Undestroyed {
  explicit Undestroyed(std::shared_ptr<void> from) : owner(std::move(from)) {}
  ~Undestroyed() {}
  std::shared_ptr<void> owner;
};

}  // namespace

void keep_for_ever(std::shared_ptr<void> owner) noexcept {
  if (owner == nullptr) return;
  const Undestroyed undestroyed(owner);
  try {
    static Kept* const kept = new Kept;
    const std::lock_guard lock(kept->mutex);
    kept->owners.push_back(std::move(owner));
  } catch (...) {  // no memory: undestroyed holds it
  }
}

}  // namespace horon::core
