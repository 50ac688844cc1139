#include "horon/tests/support/simulation/random_spec.h"

#include <array>
#include <memory>

#include "horon/core/base/text.h"

namespace horon::simulation {
namespace {

using core::EntrySpec;

template <class Enum>
Enum other_than(std::mt19937_64& random, Enum value, int count) {
  const auto step = 1 + random() % static_cast<uint64_t>(count - 1);
  return static_cast<Enum>((static_cast<uint64_t>(value) + step) % static_cast<uint64_t>(count));
}

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

core::SpecPtr random_spec(std::mt19937_64& random, const std::string& name, int size) {
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
  // Mostly what fuses, since it is equal.
  if (random() % 3 == 0) spec.dtype = static_cast<DataType>(random() % kDataTypeCount);
  if (random() % 3 == 0) spec.reduce_op = static_cast<ReduceOp>(random() % kReduceOpCount);
  if (core::has_root(spec.kind)) {
    spec.root = static_cast<int32_t>(random() % static_cast<uint64_t>(size));
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

core::SpecPtr random_change(std::mt19937_64& random, const core::SpecPtr& spec, int size) {
  auto changed = std::make_shared<EntrySpec>(*spec);
  EntrySpec& out = *changed;
  switch (random() % 11) {
    case 0:
      out.dtype = other_than(random, out.dtype, kDataTypeCount);
      return changed;
    case 1:
      out.reduce_op = other_than(random, out.reduce_op, kReduceOpCount);
      return changed;
    case 2:
      out.device = other_than(random, out.device, kDeviceKindCount);
      return changed;
    case 3:
      if (size > 1) out.root = other_than(random, out.root, size);
      if (size > 1) return changed;
      break;
    case 4:
      out.prescale += 1e-9;
      return changed;
    case 5:
      out.kind = out.kind == CollectiveKind::Allreduce ? CollectiveKind::Broadcast
                                                       : CollectiveKind::Allreduce;
      return changed;
    case 6:
      out.parts.push_back({"one more", {2}});
      return changed;
    case 7:
      if (out.parts.empty()) break;
      out.parts.back().name += "'";
      return changed;
    case 8:
      out.compression = other_than(random, out.compression, kCompressionCount);
      return changed;
    case 9:
      out.splits.push_back(3);
      return changed;
    default:
      if (out.parts.empty()) break;
      out.parts.back().shape.push_back(5);
      return changed;
  }
  out.postscale *= 2;
  return changed;
}

}  // namespace horon::simulation
