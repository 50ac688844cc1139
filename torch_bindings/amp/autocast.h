// Automatic mixed precision: a scope in which LibTorch computes in 16 bits where that is safe.
//
//   at::Tensor loss;
//   {
//     const horon::amp::Autocast scope(horon::device(), {.dtype = at::kBFloat16});
//     loss = loss_of(model->forward(x), y);
//   }
//   loss.backward();   // outside: it computes in the types of its forward pass
#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace horon::amp {

struct AutocastOptions {
  // kBFloat16 or kHalf. Empty: that of the scope around it, else LibTorch's (bfloat16 on the CPU,
  // float16 on a GPU). float16 wants a GradScaler (grad_scaler.h).
  std::optional<at::ScalarType> dtype = {};
  // false: a part of an outer scope that is to compute in the types of its inputs.
  bool enabled = true;
  // Weights that were cast are kept for their next use. Empty: as around it, else true. false for
  // weights that change within the scope.
  std::optional<bool> cache = {};
};

// The same as torch.autocast of Python. Scopes nest, also of different devices, and put back what
// they found, also when an exception passes; the end of the outermost one drops the cached weights.
// Of one thread: it is destroyed on the thread that made it, the inner before the outer, and
// threads that the program starts inside are outside of it. Nothing is communicated.
class Autocast {
 public:
  // A CPU or a CUDA device; of several GPUs it is for all. Throws Error(InvalidArgument): another
  // device or dtype; then nothing has changed.
  explicit Autocast(at::Device device, const AutocastOptions& options = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool outer_enabled_;
  at::ScalarType outer_dtype_;
  bool outer_cache_;
};

}  // namespace horon::amp
