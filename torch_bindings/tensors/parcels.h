// Tensors that travel together, so that many small ones cost few collectives.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace horon::torch_detail {

// In the order of the tensors: parcels of one dtype and device, of 1 MiB, or of one longer tensor.
// Parcels are short, since a collective copies tensors that share a parcel into a buffer.
std::vector<std::vector<at::Tensor>> in_parcels(const std::vector<at::Tensor>& tensors);

// Likewise, but longer tensors are cut along their first dimension, and parcels are `bytes` long as
// nearly as its rows allow, but for the last one of a dtype and device. For parcels that several
// ranks send at the same time: what one sends then takes as long as what another one sends. Views
// without a gradient. Looks at shapes and dtypes alone, so all ranks cut in the same places.
std::vector<std::vector<at::Tensor>> in_parcels_of(int64_t bytes,
                                                   const std::vector<at::Tensor>& tensors);

}  // namespace horon::torch_detail
