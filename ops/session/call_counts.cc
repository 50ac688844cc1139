#include "horon/ops/session/call_counts.h"

#include <optional>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/runtime/handle.h"

namespace horon::ops {

uint64_t CallCounts::next(std::string_view kind, uint32_t set, uint64_t numbers) {
  const std::lock_guard lock(mutex_);
  refuse_before_end_of_join(set);
  return counts_[{set, std::string(kind)}]++ % numbers;
}

uint64_t CallCounts::next_object(std::string_view kind, uint32_t set) {
  const std::lock_guard lock(mutex_);
  refuse_before_end_of_join(set);
  Objects& objects = objects_[{set, std::string(kind)}];
  objects.kept = objects.next + 1;
  return objects.next++;
}

uint64_t CallCounts::next_called_object(std::string_view kind, uint32_t set) {
  const std::lock_guard lock(mutex_);
  refuse_before_end_of_join(set);
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
  std::erase_if(interrupted_, is_of_set);
}

uint64_t CallCounts::times_forgotten(uint32_t set) {
  const std::lock_guard lock(mutex_);
  refuse_before_end_of_join(set);
  const auto known = forgotten_.find(set);
  return known == forgotten_.end() ? 0 : known->second;
}

std::shared_ptr<core::HandleState> CallCounts::take_interrupted(std::string_view call,
                                                                uint32_t set) {
  const std::lock_guard lock(mutex_);
  const auto known = interrupted_.find({set, std::string(call)});
  if (known == interrupted_.end()) return nullptr;
  return std::move(interrupted_.extract(known).mapped());
}

const core::Outcome& CallCounts::get_or_keep(std::string_view call, uint32_t set,
                                             const std::shared_ptr<core::HandleState>& handle) {
  try {
    (void)handle->wait(std::nullopt);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    interrupted_[{set, std::string(call)}] = handle;
    throw;
  }
  return handle->get();
}

void CallCounts::refuse_before_end_of_join(uint32_t set) const {
  if (interrupted_.empty() || !interrupted_.contains({set, "join"})) return;
  throw Error(ErrorCode::InvalidArgument,
              "the wait of join() was interrupted on this rank, and the join() goes on: call "
              "join() again, before any other collective");
}

}  // namespace horon::ops
