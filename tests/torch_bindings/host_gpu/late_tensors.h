// Tensors on the GPU of this rank whose values come late: a reader that does not wait for them in
// its stream finds other values.
#pragma once

#include <chrono>
#include <thread>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full_like.h>

#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"

namespace horon::testing_support {

inline at::Tensor late(const at::Tensor& values) {
  if (device().is_cpu()) return values.clone();  // a rank without a GPU, beside others
  at::Tensor tensor = at::full_like(values, 1).to(device());
  test::enqueue_in_current_stream([] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); },
                                  device().index());
  tensor.copy_(values);
  return tensor;
}

}  // namespace horon::testing_support
