#include "horon/torch_bindings/gradients/adasum_optimizer.h"

#include <exception>

#include <ATen/core/grad_mode.h>

#include "horon/core/base/text.h"

namespace horon::torch_detail {

void AdasumSteps::begin(const Groups& groups) {
  moved_.clear();
  if (!options_.process_set.includes_me()) return;
  const at::NoGradGuard no_grad;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.is_floating_point()) {
        moved_.push_back({parameter.detach(), parameter.detach().clone()});
      }
    }
  }
}

// A move is reduced where the parameter lies.
Handle AdasumSteps::start(const Moved& moved, size_t number) const {
  moved.parameter.sub_(moved.start);
  const bool narrows = moved.parameter.scalar_type() == at::kFloat;
  return allreduce_async_(moved.parameter,
                          {.name = core::concat(options_.name, ".", number),
                           .op = ReduceOp::Adasum,
                           .process_set = options_.process_set,
                           .compression = narrows ? options_.compression : Compression::None});
}

void AdasumSteps::end() {
  const std::vector<Moved> moved = std::move(moved_);
  moved_.clear();
  const at::NoGradGuard no_grad;
  std::vector<Handle> handles;
  std::exception_ptr fault;  // the first one
  const auto note = [&](const auto& call) {
    try {
      call();
    } catch (...) {
      if (fault == nullptr) fault = std::current_exception();
    }
  };
  note([&] {
    for (size_t i = 0; i < moved.size(); ++i) handles.push_back(start(moved[i], i));
  });
  // All of them: what still runs would write to a parameter that is back where it was.
  for (const Handle& handle : handles) note([&] { (void)handle.wait(); });
  if (fault != nullptr) {
    for (const Moved& each : moved) each.parameter.copy_(each.start);
    std::rethrow_exception(fault);
  }
  for (const Moved& each : moved) each.parameter.add_(each.start);
}

}  // namespace horon::torch_detail
