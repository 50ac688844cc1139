#include "horon/ops/cuda/move.h"

#include <algorithm>

#include "horon/core/base/error.h"
#include "horon/core/base/narrow_type.h"
#include "horon/core/base/same_real.h"

namespace horon::ops {
namespace {

using Cast = core::CopyItem::Cast;

// A multiple of all alignments, below 2^31.
constexpr int64_t kElementsPerMove = int64_t{1} << 30;

MoveLaunch launch_for(const core::CopyItem& item) {
  const DataType narrow = core::narrow_type(item.type);
  switch (item.cast) {
    case Cast::Narrow:
      return MoveLaunch::scale(DataType::Float32, narrow, item.factor);
    case Cast::Widen:
      return MoveLaunch::scale(narrow, DataType::Float32, item.factor);
    case Cast::None:
      break;
  }
  return {};
}

bool same_change(const MoveParameters& a, const MoveParameters& b) {
  return a.kind == b.kind && a.from_type == b.from_type && a.to_type == b.to_type &&
         core::same_real(a.factor, b.factor);
}

}  // namespace

MoveLaunch MoveLaunch::scale(DataType from, DataType to, double factor) {
  MoveLaunch launch;
  MoveParameters& parameters = launch.parameters_;
  parameters.kind = MoveKind::Floats;
  parameters.from_type = from;
  parameters.to_type = to;
  parameters.factor = factor;
  parameters.elements_per_chunk =
      MoveParameters::kChunkBytes / static_cast<uint32_t>(std::max(size_of(from), size_of(to)));
  return launch;
}

MoveLaunch MoveLaunch::divide(DataType dtype, int64_t divisor) {
  MoveLaunch launch = scale(dtype, dtype, 1.0);
  launch.parameters_.kind = MoveKind::Divide;
  launch.parameters_.divisor = divisor;
  return launch;
}

bool MoveLaunch::add(const std::byte* from, std::byte* to, int64_t count) {
  const auto pieces = static_cast<size_t>((count + kElementsPerMove - 1) / kElementsPerMove);
  if (moves_.size() + pieces > kMovesMax) return false;
  while (count > 0) {
    const int64_t piece = std::min(count, kElementsPerMove);
    moves_.push_back({from, to, static_cast<uint32_t>(piece), parameters_.chunks});
    const uint32_t per_chunk = parameters_.elements_per_chunk;
    parameters_.chunks += (static_cast<uint32_t>(piece) + per_chunk - 1) / per_chunk;
    if (from != nullptr) from += static_cast<size_t>(piece) * size_of(parameters_.from_type);
    to += static_cast<size_t>(piece) * size_of(parameters_.to_type);
    count -= piece;
  }
  parameters_.moves = static_cast<uint32_t>(moves_.size());
  return true;
}

bool MoveLaunch::add_fill(std::byte* to, int64_t bytes, uint64_t pattern) {
  if (parameters_.kind != MoveKind::Bytes) return false;
  if (fills_ && parameters_.pattern != pattern) return false;
  if (!add(nullptr, to, bytes)) return false;
  parameters_.pattern = pattern;
  fills_ = true;
  return true;
}

bool MoveLaunch::add(const core::CopyItem& item) {
  if (item.from == nullptr) {
    return add_fill(item.to, static_cast<int64_t>(item.bytes), item.pattern);
  }
  if (!same_change(parameters_, launch_for(item).parameters_)) return false;
  return add(item.from, item.to, static_cast<int64_t>(item.bytes / size_of(parameters_.from_type)));
}

std::vector<MoveLaunch> make_launches(std::span<const core::CopyItem> items) {
  std::vector<MoveLaunch> launches;
  for (const core::CopyItem& item : items) {
    if (item.bytes == 0) continue;
    const auto has_taken = [&](MoveLaunch& launch) { return launch.add(item); };
    if (std::any_of(launches.rbegin(), launches.rend(), has_taken)) continue;
    launches.push_back(item.from == nullptr ? MoveLaunch() : launch_for(item));
    const bool added = launches.back().add(item);
    HORON_CHECK(added, "an empty launch takes any copy of memory that a machine can have");
  }
  return launches;
}

}  // namespace horon::ops
