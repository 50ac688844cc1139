#include "horon/ops/session/call_counts.h"

namespace horon::ops {

uint64_t CallCounts::next(std::string_view kind, uint32_t set, uint64_t numbers) {
  const std::lock_guard lock(mutex_);
  return counts_[{set, std::string(kind)}]++ % numbers;
}

uint64_t CallCounts::next_object(std::string_view kind, uint32_t set) {
  const std::lock_guard lock(mutex_);
  Objects& objects = objects_[{set, std::string(kind)}];
  objects.kept = objects.next + 1;
  return objects.next++;
}

uint64_t CallCounts::next_called_object(std::string_view kind, uint32_t set) {
  const std::lock_guard lock(mutex_);
  return objects_[{set, std::string(kind)}].next++;
}

void CallCounts::keep_objects(std::string_view kind, uint32_t set) {
  const std::lock_guard lock(mutex_);
  Objects& objects = objects_[{set, std::string(kind)}];
  objects.kept = objects.next;
}

void CallCounts::forget(uint32_t set) {
  const std::lock_guard lock(mutex_);
  std::erase_if(counts_, [set](const auto& count) { return count.first.first == set; });
  for (auto& [kind, objects] : objects_) {
    if (kind.first == set) objects.next = objects.kept;
  }
  ++forgotten_[set];
}

void CallCounts::drop(uint32_t set) {
  const std::lock_guard lock(mutex_);
  const auto is_of_set = [set](const auto& count) { return count.first.first == set; };
  std::erase_if(counts_, is_of_set);
  std::erase_if(objects_, is_of_set);
}

uint64_t CallCounts::times_forgotten(uint32_t set) {
  const std::lock_guard lock(mutex_);
  const auto known = forgotten_.find(set);
  return known == forgotten_.end() ? 0 : known->second;
}

}  // namespace horon::ops
