#include "horon/core/execution/host_copies.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/round_up.h"

namespace horon::core {

bool HostCopies::are_needed(const std::vector<EntryWork>& entries) {
  return std::any_of(entries.begin(), entries.end(),
                     [](const EntryWork& entry) { return entry.copied_to_host; });
}

HostCopies::HostCopies(std::vector<EntryWork>& entries, const BlockLayout* blocks, bool is_source,
                       ScratchPool& pool)
    : pool_(pool), domain_(pool.domain_of_host_copies(DeviceKind::Cuda)) {
  for (EntryWork& entry : entries) {
    if (entry.copied_to_host) plan(entry, blocks, is_source);
  }
}

HostCopies::~HostCopies() { end(/*in_use=*/true); }

size_t HostCopies::add(Stretch stretch) {
  stretch.at = bytes_;
  bytes_ += whole_cache_lines(stretch.bytes);
  stretches_.push_back(stretch);
  return stretches_.size() - 1;
}

// Where the result has the shape of the input, both share one copy.
void HostCopies::plan(EntryWork& entry, const BlockLayout* blocks, bool is_source) {
  const bool broadcasts = entry.spec->kind == CollectiveKind::Broadcast;
  const size_t element = size_of(entry.spec->dtype);
  Replaced& replaced = replaced_.emplace_back();
  replaced.entry = &entry;
  replaced.memory = entry.memory;
  for (const MemoryPart& part : entry.memory) {
    const bool is_there = is_source && part.input == part.output;
    Stretch stretch;
    if (!broadcasts || is_source) stretch.from = part.input;
    if (part.wants_output && !is_there) stretch.to = part.output;
    stretch.bytes = static_cast<size_t>(part.count) * element;
    add(stretch);
  }
  if (blocks == nullptr) return;
  for (const std::vector<int64_t>& of_part : blocks->out) {
    Stretch result;
    for (const int64_t elements : of_part) result.bytes += static_cast<size_t>(elements) * element;
    replaced.results.push_back(add(result));
  }
}

bool HostCopies::place() {
  if (!domain_.is_open() || !pool_.has_at_hand(domain_, bytes_)) return false;
  scratch_ = pool_.take(domain_, bytes_);
  placed_ = true;
  size_t next = 0;
  for (Replaced& replaced : replaced_) {
    for (MemoryPart& part : replaced.entry->memory) {
      std::byte* const copy = copy_of(stretches_[next++]);
      part.input = copy;
      if (part.output != nullptr) part.output = copy;
      part.wants_output = true;
    }
    next += replaced.results.size();
    replace(replaced);
  }
  return true;
}

// When the batch asks for memory for a result, the tensor's memory is allocated, but the batch gets
// the copy.
void HostCopies::replace(Replaced& replaced) {
  if (replaced.results.empty()) return;
  replaced.allocate_output =
      std::exchange(replaced.entry->allocate_output,
                    [this, &replaced](size_t part, int64_t elements, MemoryQueue&) -> std::byte* {
                      Stretch& result = stretches_[replaced.results[part]];
                      result.to = replaced.allocate_output(part, elements, domain_.queue_back());
                      return result.to == nullptr ? nullptr : copy_of(result);
                    });
}

std::shared_ptr<Event> HostCopies::enqueue(MemoryQueue& queue, Way way) const {
  std::vector<CopyItem> items;
  for (const Stretch& stretch : stretches_) {
    const std::byte* const from = way == Way::ToHost ? stretch.from : copy_of(stretch);
    std::byte* const to = way == Way::ToHost ? copy_of(stretch) : stretch.to;
    if (from != nullptr && to != nullptr && stretch.bytes > 0) {
      items.push_back({from, to, stretch.bytes});
    }
  }
  queue.copy(items);
  return queue.record();
}

bool HostCopies::bring() {
  if (brought_ == nullptr) brought_ = enqueue(domain_.queue(), Way::ToHost);
  return brought_->happened();
}

std::shared_ptr<Event> HostCopies::take_back() { return enqueue(domain_.queue_back(), Way::Back); }

void HostCopies::end(bool in_use) noexcept {
  if (!placed_) return;
  placed_ = false;
  for (Replaced& replaced : replaced_) {
    replaced.entry->memory = std::move(replaced.memory);
    if (replaced.allocate_output == nullptr) continue;
    replaced.entry->allocate_output = std::move(replaced.allocate_output);
  }
  if (in_use) {
    pool_.leak(std::move(scratch_));
  } else {
    pool_.give_back(domain_, std::move(scratch_), nullptr);
  }
}

}  // namespace horon::core
