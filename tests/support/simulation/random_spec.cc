#include "horon/tests/support/simulation/random_spec.h"

#include <array>
#include <memory>

#include "horon/core/base/text.h"
#include "horon/tests/support/spec_changes.h"

namespace horon::simulation {
namespace {

using core::EntrySpec;

std::vector<int64_t> random_shape(std::mt19937_64& random) {
  constexpr std::array<int64_t, 8> extents = {0, 1, 2, 3, 7, 16, 33, 400};
  std::vector<int64_t> shape(random() % 4);
  for (int64_t& extent : shape) extent = extents.at(random() % extents.size());
  return shape;
}

bool has_rows(const EntrySpec& spec) {
  return core::has_own_rows(spec.kind) || spec.kind == CollectiveKind::Reducescatter;
}

}  // namespace

core::SpecPtr random_spec(std::mt19937_64& random, const std::string& name,
                          const std::vector<int>& ranks) {
  EntrySpec spec;
  const uint64_t dice = random() % 12;
  if (dice == 7) spec.kind = CollectiveKind::Broadcast;
  if (dice == 8) spec.kind = CollectiveKind::Allgather;
  if (dice >= 10) {
    constexpr std::array kinds = {CollectiveKind::Reducescatter, CollectiveKind::Alltoall,
                                  CollectiveKind::Gather, CollectiveKind::Scatter};
    spec.kind = kinds.at(random() % kinds.size());
  }
  if (dice == 9) spec.kind = CollectiveKind::Barrier;
  if (spec.kind == CollectiveKind::Barrier) return std::make_shared<EntrySpec>(spec);
  // Mostly specs that fuse because these fields are equal.
  if (random() % 3 == 0) spec.dtype = static_cast<DataType>(random() % kDataTypeCount);
  if (random() % 3 == 0)
    spec.reduce_op = static_cast<ReduceOp>(random() % static_cast<int>(ReduceOp::Adasum));
  if (random() % 6 == 0) spec.prescale = 0.5;
  if (spec.kind == CollectiveKind::Allreduce && random() % 4 == 0) {
    spec.compression = static_cast<Compression>(random() % kCompressionCount);
  }
  if (spec.kind == CollectiveKind::Allreduce && random() % 6 == 0) spec.piece_bytes = 64;
  spec.captured = random() % 12 == 0;
  if (core::has_root(spec.kind)) {
    spec.root = ranks[random() % ranks.size()];
  }
  const size_t parts = random() % 2 == 0 ? 1 : 1 + random() % 4;
  for (size_t part = 0; part < parts; ++part) {
    core::TensorPart& out = spec.parts.emplace_back();
    out.name = parts == 1 ? name : core::concat(name, ".", part);
    out.shape = random_shape(random);
    if (has_rows(spec) && out.shape.empty()) out.shape.push_back(0);
  }
  return std::make_shared<EntrySpec>(std::move(spec));
}

core::SpecPtr random_change(std::mt19937_64& random, const core::SpecPtr& spec,
                            const std::vector<int>& ranks) {
  auto changed = std::make_shared<EntrySpec>(*spec);
  const std::vector<test::SpecChange>& changes = test::spec_changes();
  const test::SpecChange& change = changes[random() % changes.size()];
  if (change.field == "collective") {
    // To a kind that takes tensors of any shape.
    changed->kind = spec->kind == CollectiveKind::Allreduce ? CollectiveKind::Broadcast
                                                            : CollectiveKind::Allreduce;
  } else if (change.field == "root" && ranks.size() > 1) {
    changed->root = spec->root == ranks.front() ? ranks.back() : ranks.front();
  } else if ((change.field == "root") || (change.of_a_tensor && spec->parts.empty())) {
    changed->postscale *= 2;
  } else {
    change.apply(*changed);
  }
  return changed;
}

core::SpecPtr plain_spec() {
  EntrySpec spec;
  spec.parts = {{"part", {4}}};
  return std::make_shared<EntrySpec>(spec);
}

std::vector<int> random_hosts(std::mt19937_64& random, size_t ranks) {
  std::vector<int> hosts(ranks);
  if (random() % 2 == 0) return hosts;
  int next = 0;
  const size_t many = 1 + random() % ranks;
  std::vector<int> numbers(ranks, -1);
  for (int& host : hosts) {
    int& number = numbers[random() % many];
    if (number < 0) number = next++;
    host = number;
  }
  return hosts;
}

}  // namespace horon::simulation
