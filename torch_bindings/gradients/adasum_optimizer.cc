#include "horon/torch_bindings/gradients/adasum_optimizer.h"

#include <ATen/core/grad_mode.h>

#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/collectives.h"

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

// A move is made where the parameter lies.
void AdasumSteps::end() {
  const std::vector<Moved> moved = std::move(moved_);
  moved_.clear();
  const at::NoGradGuard no_grad;
  try {
    std::vector<Handle> handles;
    for (size_t i = 0; i < moved.size(); ++i) {
      moved[i].parameter.sub_(moved[i].start);
      const bool narrows = moved[i].parameter.scalar_type() == at::kFloat;
      handles.push_back(allreduce_async_(
          moved[i].parameter, {.name = core::concat(options_.name, ".", i),
                               .op = ReduceOp::Adasum,
                               .process_set = options_.process_set,
                               .compression = narrows ? options_.compression : Compression::None}));
    }
    for (const Handle& handle : handles) (void)handle.wait();
  } catch (...) {
    for (const Moved& each : moved) each.parameter.copy_(each.start);
    throw;
  }
  for (const Moved& each : moved) each.parameter.add_(each.start);
}

}  // namespace horon::torch_detail
