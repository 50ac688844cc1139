#include "horon/core/negotiation/fusion_planner.h"

#include <utility>

namespace horon::core {
namespace {

bool same_collective(const ClosedEntry& a, const ClosedEntry& b) {
  return a.spec->kind == b.spec->kind && a.spec->dtype == b.spec->dtype &&
         a.spec->reduce_op == b.spec->reduce_op && a.spec->device == b.spec->device &&
         a.spec->root == b.spec->root && a.spec->prescale == b.spec->prescale &&
         a.spec->postscale == b.spec->postscale && a.spec->compression == b.spec->compression &&
         a.spec->splits == b.spec->splits && a.joined == b.joined;
}

}  // namespace

void FusionPlanner::add(ClosedEntry entry) {
  const int64_t bytes =
      element_count(*entry.spec) * static_cast<int64_t>(size_of(entry.spec->dtype));
  ready_bytes_ += bytes;
  waiting_.push_back({std::move(entry), bytes});
}

bool FusionPlanner::fuses(const Waiting& waiting) const {
  const CollectiveKind kind = waiting.entry.spec->kind;
  return (kind == CollectiveKind::Allreduce || kind == CollectiveKind::Broadcast) &&
         waiting.bytes < alone_bytes_;
}

std::vector<ClosedEntry> FusionPlanner::take_batch() {
  std::vector<ClosedEntry> batch;
  Waiting first = std::move(waiting_.front());
  waiting_.pop_front();
  ready_bytes_ -= first.bytes;
  const bool alone = !fuses(first);
  int64_t bytes = first.bytes;
  batch.push_back(std::move(first.entry));
  if (alone) return batch;

  std::deque<Waiting> skipped;
  for (Waiting& next : waiting_) {
    const bool fits = fuses(next) && bytes + next.bytes <= bytes_max_ &&
                      same_collective(batch.front(), next.entry);
    if (!fits) {
      skipped.push_back(std::move(next));
      continue;
    }
    bytes += next.bytes;
    ready_bytes_ -= next.bytes;
    batch.push_back(std::move(next.entry));
  }
  waiting_ = std::move(skipped);
  return batch;
}

}  // namespace horon::core
