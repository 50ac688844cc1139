// The two hooks on one parameter: before autograd adds to its .grad, and after.
//
// Autograd calls both on the thread that runs that part of the backward pass. The hooks sit on the
// tensor and live as long as it does, so they hold a link to the listener that can be cut, never
// the parameter itself (that would be a cycle).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

namespace horon::torch_detail {

class GradientListener {
 public:
  // What they throw leaves backward().
  virtual void before_accumulate(size_t index) = 0;
  // Also called if the gradient that came was undefined: then .grad is as it was.
  virtual void after_accumulate(size_t index) = 0;

 protected:
  ~GradientListener() = default;
};

struct HookLink;

enum class Hooks : uint8_t {
  BeforeAndAfter,
  AfterAlone,  // cheaper: LibTorch copies the list of gradients for each pre-hook
};

// Sets the hooks, and removes them when it goes. A post-accumulate hook that was there before stays
// and is called first; one that is set later on top of ours stays too, and ours then only forwards.
class HookedParameter {
 public:
  // The parameter is a leaf; a frozen one is fine (its hooks begin to be called when it is
  // unfrozen). Throws Error(InvalidArgument) naming it if another listener hears it already.
  HookedParameter(const at::Tensor& parameter, const std::string& name, GradientListener* listener,
                  size_t index, Hooks hooks = Hooks::BeforeAndAfter);
  ~HookedParameter();
  HookedParameter(HookedParameter&&) noexcept = default;
  HookedParameter& operator=(HookedParameter&&) = delete;

 private:
  at::Tensor parameter_;
  std::shared_ptr<HookLink> link_;
};

}  // namespace horon::torch_detail
