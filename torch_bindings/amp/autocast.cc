#include "horon/torch_bindings/amp/autocast.h"

#include <ATen/autocast_mode.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::amp {
namespace {

at::DeviceType checked_device(at::Device device) {
  if (device.is_cpu() || device.is_cuda()) return device.type();
  throw Error(ErrorCode::InvalidArgument,
              core::concat("Autocast: the device is ", device.str(), ", not a CPU or CUDA device"));
}

at::ScalarType checked_dtype(at::ScalarType dtype) {
  if (dtype == at::kBFloat16 || dtype == at::kHalf) return dtype;
  throw Error(ErrorCode::InvalidArgument,
              core::concat("Autocast: the dtype is ", c10::toString(dtype),
                           "; give kBFloat16 or kHalf, or {.enabled = false}"));
}

}  // namespace

Autocast::Autocast(at::Device device, const AutocastOptions& options)
    : device_(checked_device(device)),
      outer_enabled_(at::autocast::is_autocast_enabled(device_)),
      outer_dtype_(at::autocast::get_autocast_dtype(device_)),
      outer_cache_(at::autocast::is_autocast_cache_enabled()) {
  const at::ScalarType dtype = checked_dtype(options.dtype.value_or(outer_dtype_));
  at::autocast::set_autocast_enabled(device_, options.enabled);
  at::autocast::set_autocast_dtype(device_, dtype);
  at::autocast::increment_nesting();
  at::autocast::set_autocast_cache_enabled(options.cache.value_or(outer_cache_));
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, outer_enabled_);
  at::autocast::set_autocast_dtype(device_, outer_dtype_);
  at::autocast::set_autocast_cache_enabled(outer_cache_);
}

}  // namespace horon::amp
