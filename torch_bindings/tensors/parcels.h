// Tensors that travel together, so that many small ones cost few collectives.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace horon::torch_detail {

// In the order of the tensors: parcels of one dtype and device, of 1 MiB, or of one longer tensor.
// A collective copies what is in a parcel with others into a buffer, so they are short.
std::vector<std::vector<at::Tensor>> in_parcels(const std::vector<at::Tensor>& tensors);

}  // namespace horon::torch_detail
