#include "horon/core/base/entry_spec.h"

#include <array>

namespace horon {

std::string_view to_string(CollectiveKind kind) {
  constexpr std::array<std::string_view, kCollectiveKindCount> names = {"allreduce", "broadcast",
                                                                        "allgather", "barrier"};
  return names.at(static_cast<size_t>(kind));
}

std::string_view to_string(ReduceOp op) {
  constexpr std::array<std::string_view, kReduceOpCount> names = {"Sum", "Average", "Min", "Max",
                                                                  "Product"};
  return names.at(static_cast<size_t>(op));
}

std::string_view to_string(DeviceKind device) {
  constexpr std::array<std::string_view, kDeviceKindCount> names = {"host", "cuda"};
  return names.at(static_cast<size_t>(device));
}

namespace core {

int64_t element_count(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

int64_t element_count(const EntrySpec& spec) {
  int64_t count = 0;
  for (const TensorPart& part : spec.parts) count += element_count(part.shape);
  return count;
}

}  // namespace core
}  // namespace horon
