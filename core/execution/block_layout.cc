#include "horon/core/execution/block_layout.h"

#include <algorithm>
#include <numeric>

#include "horon/core/negotiation/told_extents.h"

namespace horon::core {
namespace {

std::vector<int64_t> sums_by_block(const std::vector<std::vector<int64_t>>& parts) {
  std::vector<int64_t> sums(parts.empty() ? 0 : parts.front().size());
  for (const std::vector<int64_t>& blocks : parts) {
    for (size_t block = 0; block < blocks.size(); ++block) sums[block] += blocks[block];
  }
  return sums;
}

// Looks up any member's extents among those that the plan has brought to this member.
class Extents {
 public:
  Extents(const EntrySpec& spec, std::span<const int64_t> said, std::span<const int> ranks)
      : said_(said) {
    size_t begin = 0;
    for (const int rank : ranks) {
      const size_t each = extents_of_part(spec, rank == spec.root, static_cast<int>(ranks.size()));
      members_.push_back({begin, each});
      begin += each * spec.parts.size();
    }
  }

  int64_t get(size_t member, size_t part, size_t index = 0) const {
    return said_[members_[member].begin + part * members_[member].each + index];
  }
  // Alltoall.
  ToldOfPart told(size_t part) const { return {said_, part, members_.size()}; }

 private:
  struct Member {
    size_t begin = 0;
    size_t each = 0;  // numbers for one part
  };
  std::span<const int64_t> said_;
  std::vector<Member> members_;
};

// The blocks of one part, in rows.
struct PartRows {
  std::vector<int64_t> in;
  std::vector<int64_t> out;
};

PartRows rows_of_part(const EntrySpec& spec, const Extents& extents, size_t part, size_t me,
                      size_t root, size_t size) {
  PartRows rows;
  rows.in.resize(size);
  rows.out.resize(size);
  switch (spec.kind) {
    case CollectiveKind::Allgather:
      rows.in = {extents.get(me, part)};
      for (size_t m = 0; m < size; ++m) rows.out[m] = extents.get(m, part);
      break;
    case CollectiveKind::Gather:
      rows.in[root] = extents.get(me, part);
      for (size_t m = 0; m < size && me == root; ++m) rows.out[m] = extents.get(m, part);
      break;
    case CollectiveKind::Alltoall:
      for (size_t m = 0; m < size; ++m) {
        rows.in[m] = extents.told(part).sends[m];
        rows.out[m] = extents.told(part).gets[m];
      }
      break;
    case CollectiveKind::Scatter:
      for (size_t m = 0; m < size && me == root; ++m) rows.in[m] = extents.get(root, part, m);
      rows.out[root] = extents.get(root, part, me);
      break;
    case CollectiveKind::Reducescatter:
      rows.in = spec.splits.empty()
                    ? even_splits(spec.parts[part].shape.front(), static_cast<int>(size))
                    : spec.splits;
      rows.out = {rows.in[me]};
      break;
    default:
      break;
  }
  return rows;
}

}  // namespace

bool moves_blocks(CollectiveKind kind) {
  return has_own_rows(kind) || kind == CollectiveKind::Reducescatter;
}

int64_t total(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

int index_of(int rank, std::span<const int> ranks) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? 0 : static_cast<int>(found - ranks.begin());
}

BlockLayout make_block_layout(const EntrySpec& spec, std::span<const int64_t> extents, int me,
                              std::span<const int> ranks) {
  const Extents said(spec, extents, ranks);
  const auto root = static_cast<size_t>(index_of(spec.root, ranks));
  BlockLayout layout;
  if (spec.as_one) {
    layout.in = {spec.splits};
    layout.out = {{spec.splits[static_cast<size_t>(me)]}};
  }
  for (size_t part = 0; part < spec.parts.size() && !spec.as_one; ++part) {
    const int64_t row = row_elements(spec.parts[part].shape);
    PartRows rows = rows_of_part(spec, said, part, static_cast<size_t>(me), root, ranks.size());
    for (int64_t& block : rows.in) block *= row;
    for (int64_t& block : rows.out) block *= row;
    layout.in.push_back(std::move(rows.in));
    layout.out.push_back(std::move(rows.out));
  }
  layout.in_counts = sums_by_block(layout.in);
  layout.out_counts = sums_by_block(layout.out);
  layout.in_total = total(layout.in_counts);
  layout.out_total = total(layout.out_counts);
  return layout;
}

}  // namespace horon::core
