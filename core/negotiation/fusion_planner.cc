#include "horon/core/negotiation/fusion_planner.h"

#include <utility>

#include "horon/core/base/same_real.h"

namespace horon::core {

int64_t byte_count(const EntrySpec& spec) {
  return element_count(spec) * static_cast<int64_t>(size_of(spec.dtype));
}

bool may_fuse(const EntrySpec& spec, int64_t bytes, int64_t alone_bytes) {
  // Which elements share a block of int8 must not depend on what else was ready.
  const bool adds = spec.reduce_op == ReduceOp::Sum || spec.reduce_op == ReduceOp::Average;
  if (spec.compression == Compression::Int8 && adds) return false;
  return (spec.kind == CollectiveKind::Allreduce || spec.kind == CollectiveKind::Broadcast) &&
         bytes < alone_bytes;
}

bool same_collective(const EntrySpec& a, const EntrySpec& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.reduce_op == b.reduce_op &&
         a.device == b.device && a.root == b.root && same_real(a.prescale, b.prescale) &&
         same_real(a.postscale, b.postscale) && a.compression == b.compression &&
         a.piece_bytes == b.piece_bytes && a.captured == b.captured && a.splits == b.splits;
}

void FusionPlanner::add(ClosedEntry entry) {
  const int64_t bytes = byte_count(*entry.spec);
  ready_bytes_ += bytes;
  waiting_.push_back({std::move(entry), bytes});
}

std::vector<ClosedEntry> FusionPlanner::take_batch() {
  std::vector<ClosedEntry> batch;
  Waiting first = std::move(waiting_.front());
  waiting_.pop_front();
  ready_bytes_ -= first.bytes;
  const bool alone = !may_fuse(*first.entry.spec, first.bytes, alone_bytes_);
  int64_t bytes = first.bytes;
  batch.push_back(std::move(first.entry));
  if (alone) return batch;

  std::deque<Waiting> skipped;
  for (Waiting& next : waiting_) {
    const bool fits = may_fuse(*next.entry.spec, next.bytes, alone_bytes_) &&
                      bytes + next.bytes <= bytes_max_ &&
                      same_collective(*batch.front().spec, *next.entry.spec) &&
                      batch.front().joined == next.entry.joined;
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
