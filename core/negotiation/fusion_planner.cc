#include "horon/core/negotiation/fusion_planner.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
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
         a.piece_bytes == b.piece_bytes && a.captured == b.captured && a.splits == b.splits &&
         a.as_one == b.as_one;
}

bool FusionPlanner::Key::operator==(const Key& other) const {
  return same_collective(*spec, *other.spec) && joined == other.joined;
}

// Hashes what may differ between many entries. All NaNs are equal, whatever their bits.
size_t FusionPlanner::KeyHash::operator()(const Key& key) const {
  size_t hash = 0;
  const auto mix = [&hash](auto value) {
    hash = (hash ^ std::hash<decltype(value)>()(value)) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  };
  const EntrySpec& spec = *key.spec;
  mix(static_cast<int>(spec.kind));
  mix(static_cast<int>(spec.dtype));
  mix(spec.root);
  mix(spec.piece_bytes);
  for (const double scale : {spec.prescale, spec.postscale}) mix(std::isnan(scale) ? 0.0 : scale);
  for (const int member : key.joined) mix(member);
  return hash;
}

void FusionPlanner::add(ClosedEntry entry) {
  const int64_t bytes = byte_count(*entry.spec);
  ready_bytes_ += bytes;
  if (!may_fuse(*entry.spec, bytes, alone_bytes_)) {
    waiting_.push_back({std::move(entry), bytes});
    return;
  }
  Alike& alike = alike_.try_emplace({entry.spec, entry.joined}, Alike{{}, bytes}).first->second;
  alike.bytes_min = std::min(alike.bytes_min, bytes);
  waiting_.push_back({std::move(entry), bytes});
  alike.entries.push_back(std::prev(waiting_.end()));
}

std::vector<ClosedEntry> FusionPlanner::take_batch() {
  std::vector<ClosedEntry> batch;
  int64_t bytes = 0;
  const auto take = [&](WaitingIterator at) {
    bytes += at->bytes;
    ready_bytes_ -= at->bytes;
    batch.push_back(std::move(at->entry));
    waiting_.erase(at);
  };
  const Waiting& first = waiting_.front();
  if (!may_fuse(*first.entry.spec, first.bytes, alone_bytes_)) {
    take(waiting_.begin());
    return batch;
  }
  const auto found = alike_.find({first.entry.spec, first.entry.joined});
  auto& [entries, bytes_min] = found->second;
  take(entries.front());
  entries.pop_front();
  for (auto next = entries.begin(); next != entries.end() && bytes + bytes_min <= bytes_max_;) {
    if (bytes + (*next)->bytes > bytes_max_) {
      ++next;
      continue;
    }
    take(*next);
    next = entries.erase(next);
  }
  if (entries.empty()) alike_.erase(found);
  return batch;
}

}  // namespace horon::core
