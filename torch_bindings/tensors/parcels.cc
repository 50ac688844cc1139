#include "horon/torch_bindings/tensors/parcels.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

namespace horon::torch_detail {
namespace {

constexpr int64_t kBytes = 1 << 20;
constexpr size_t kTensors = 1024;

using Parcels = std::vector<std::vector<at::Tensor>>;

int64_t bytes_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

// Parcels, of which the last one of each dtype and device takes more tensors.
class Filling {
 public:
  explicit Filling(int64_t bytes) : bytes_(bytes) {}

  // Bytes that still fit into the parcel that takes the next tensor of this kind. Negative: it
  // takes no more, not even a tensor of 0 bytes.
  int64_t room_for(const at::Tensor& tensor) {
    const Open& open = open_for(tensor);
    return parcels_[open.parcel].size() == kTensors ? -1 : bytes_ - open.bytes;
  }
  bool is_empty_for(const at::Tensor& tensor) { return parcels_[open_for(tensor).parcel].empty(); }
  void put(at::Tensor tensor) {
    Open& open = open_for(tensor);
    open.bytes += bytes_of(tensor);
    parcels_[open.parcel].push_back(std::move(tensor));
  }
  void begin_another_for(const at::Tensor& tensor) {
    open_for(tensor) = {parcels_.size(), 0};
    parcels_.emplace_back();
  }
  Parcels take() { return std::move(parcels_); }

 private:
  struct Open {
    size_t parcel = 0;
    int64_t bytes = 0;
  };
  using Kind = std::tuple<at::ScalarType, c10::DeviceType, c10::DeviceIndex>;

  Open& open_for(const at::Tensor& tensor) {
    const at::Device device = tensor.device();
    const auto [open, is_new] = open_.try_emplace(
        Kind(tensor.scalar_type(), device.type(), device.index()), Open{parcels_.size(), 0});
    if (is_new) parcels_.emplace_back();
    return open->second;
  }

  const int64_t bytes_;
  Parcels parcels_;
  std::map<Kind, Open> open_;
};

}  // namespace

Parcels in_parcels(const std::vector<at::Tensor>& tensors) {
  Filling filling(kBytes);
  for (const at::Tensor& tensor : tensors) {
    if (!filling.is_empty_for(tensor) && bytes_of(tensor) > filling.room_for(tensor)) {
      filling.begin_another_for(tensor);
    }
    filling.put(tensor);
  }
  return filling.take();
}

Parcels in_parcels_of(int64_t bytes, const std::vector<at::Tensor>& tensors) {
  Filling filling(bytes);
  for (const at::Tensor& each : tensors) {
    const at::Tensor tensor = each.detach();
    const int64_t rows = tensor.dim() == 0 || tensor.numel() == 0 ? 1 : tensor.size(0);
    const int64_t row_bytes = bytes_of(tensor) / rows;
    for (int64_t begin = 0, end = 0; begin < rows; begin = end) {
      const int64_t room = filling.room_for(tensor);
      const int64_t fit = room < 0 ? 0 : row_bytes > 0 ? room / row_bytes : rows;
      end = std::min(rows, begin + std::max<int64_t>(fit, 1));
      // What little is left of a parcel isn't worth a cut.
      const bool is_cut = begin > 0 || end < rows;
      if (!filling.is_empty_for(tensor) && (fit == 0 || (end < rows && room < bytes / 16))) {
        filling.begin_another_for(tensor);
        end = begin;
        continue;
      }
      filling.put(is_cut ? tensor.narrow(0, begin, end - begin) : tensor);
    }
  }
  return filling.take();
}

}  // namespace horon::torch_detail
