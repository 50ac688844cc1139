#include "horon/torch_bindings/tensors/parcels.h"

#include <cstddef>
#include <map>
#include <tuple>

namespace horon::torch_detail {
namespace {

constexpr size_t kBytes = 1 << 20;
constexpr size_t kTensors = 1024;

}  // namespace

std::vector<std::vector<at::Tensor>> in_parcels(const std::vector<at::Tensor>& tensors) {
  struct Open {
    size_t parcel = 0;
    size_t bytes = 0;
  };
  using Kind = std::tuple<at::ScalarType, c10::DeviceType, c10::DeviceIndex>;
  std::vector<std::vector<at::Tensor>> parcels;
  std::map<Kind, Open> open_ones;
  for (const at::Tensor& tensor : tensors) {
    const at::Device device = tensor.device();
    const auto [found, is_new] = open_ones.try_emplace(
        Kind(tensor.scalar_type(), device.type(), device.index()), Open{parcels.size(), 0});
    Open& open = found->second;
    const bool is_full = !is_new && (open.bytes + tensor.nbytes() > kBytes ||
                                     parcels[open.parcel].size() == kTensors);
    if (is_full) open = {parcels.size(), 0};
    if (is_new || is_full) parcels.emplace_back();
    parcels[open.parcel].push_back(tensor);
    open.bytes += tensor.nbytes();
  }
  return parcels;
}

}  // namespace horon::torch_detail
