#include "horon/core/negotiation/told_extents.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace horon::core {
namespace {

size_t numbers_of_part(size_t size) { return 2 * size + 1; }

// The extents come from other ranks and have not been checked: their sum may overflow.
int64_t sum_or_largest(int64_t sum, int64_t rows) {
  constexpr int64_t largest = std::numeric_limits<int64_t>::max();
  return rows > largest - sum ? largest : sum + rows;
}

}  // namespace

size_t extents_told(const EntrySpec& spec, std::span<const int> ranks) {
  if (spec.kind == CollectiveKind::Alltoall) {
    return spec.parts.size() * numbers_of_part(ranks.size());
  }
  size_t count = 0;
  for (const int rank : ranks) {
    count += spec.parts.size() *
             extents_of_part(spec, rank == spec.root, static_cast<int>(ranks.size()));
  }
  return count;
}

SaidByAll::SaidByAll(std::vector<int64_t> said, size_t size)
    : said_(std::move(said)), size_(size), of_all_(said_.size() / (size * size)) {
  for (size_t part = 0; part < parts(); ++part) {
    for (size_t from = 0; from < size_; ++from) {
      for (const int64_t each : rows(from, part)) {
        of_all_[part] = sum_or_largest(of_all_[part], each);
      }
    }
  }
}

std::span<const int64_t> SaidByAll::rows(size_t from, size_t part) const {
  return std::span(said_).subspan((from * parts() + part) * size_, size_);
}

std::vector<int64_t> SaidByAll::told_to(size_t member) const {
  std::vector<int64_t> told;
  told.reserve(parts() * numbers_of_part(size_));
  for (size_t part = 0; part < parts(); ++part) {
    const std::span<const int64_t> own = rows(member, part);
    told.insert(told.end(), own.begin(), own.end());
    for (size_t from = 0; from < size_; ++from) told.push_back(rows(from, part)[member]);
    told.push_back(of_all_[part]);
  }
  return told;
}

ToldOfPart::ToldOfPart(std::span<const int64_t> told, size_t part, size_t size)
    : sends(told.subspan(part * numbers_of_part(size), size)),
      gets(told.subspan(part * numbers_of_part(size) + size, size)),
      of_all(told[part * numbers_of_part(size) + 2 * size]) {}

bool differs_by_member(const Item& record) {
  const auto* const plan = std::get_if<Plan>(&record);
  if (plan == nullptr) return false;
  return std::any_of(plan->batches.begin(), plan->batches.end(), [](const PlannedBatch& batch) {
    return std::any_of(batch.entries.begin(), batch.entries.end(),
                       [](const PlannedEntry& entry) { return entry.said_by_all != nullptr; });
  });
}

Item told_to(const Item& record, size_t member) {
  Item told = record;
  for (PlannedBatch& batch : std::get<Plan>(told).batches) {
    for (PlannedEntry& entry : batch.entries) {
      const auto said = std::exchange(entry.said_by_all, nullptr);
      if (said != nullptr) entry.extents = said->told_to(member);
    }
  }
  return told;
}

}  // namespace horon::core
