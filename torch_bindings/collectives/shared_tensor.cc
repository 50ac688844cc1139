#include "horon/torch_bindings/collectives/shared_tensor.h"

#include <cstddef>
#include <limits>
#include <string_view>

#include <c10/util/safe_numerics.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/torch_bindings/collectives/result_memory.h"

namespace horon {
namespace {

constexpr std::string_view kCall = "shared_zeros(): ";

size_t bytes_of(at::IntArrayRef shape, size_t element_bytes) {
  uint64_t bytes = element_bytes;
  bool too_many = false;
  for (const int64_t extent : shape) {
    if (extent < 0) {
      throw Error(
          ErrorCode::InvalidArgument,
          core::concat(kCall, "the shape ", core::shape_text(shape), " has an extent below 0"));
    }
    too_many |= c10::mul_overflows(bytes, static_cast<uint64_t>(extent), &bytes);
  }
  if (too_many || bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat(kCall, "the shape ", core::shape_text(shape),
                             " has more bytes than can be addressed"));
  }
  return static_cast<size_t>(bytes);
}

}  // namespace

at::Tensor shared_zeros(at::IntArrayRef shape, const at::TensorOptions& options) {
  if (!options.device().is_cpu() || options.layout() != at::kStrided) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat(kCall, "makes dense tensors on the CPU, not ", options.layout(),
                             " ones on ", options.device()));
  }
  const at::ScalarType type = at::typeMetaToScalarType(options.dtype());
  if (options.requires_grad() && !at::isFloatingType(type) && !at::isComplexType(type)) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat(kCall, "a tensor of ", options.dtype().name(),
                             " has no gradient; leave out requires_grad"));
  }
  const size_t bytes = bytes_of(shape, options.dtype().itemsize());
  // What holds nothing has an address too.
  at::Tensor tensor = torch_detail::tensor_in(ops::allocate_host(bytes > 0 ? bytes : 1), shape,
                                              options.requires_grad(false));
  return tensor.set_requires_grad(options.requires_grad());
}

}  // namespace horon
