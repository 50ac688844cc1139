#include "horon/torch_bindings/tensors/holders.h"

#include <atomic>

namespace horon::torch_detail {
namespace {

bool has_other_references(const at::Tensor& tensor) { return tensor.use_count() > 1; }

std::atomic<HeldByOthers> held_by_others{&has_other_references};

}  // namespace

bool is_held_by_others(const at::Tensor& tensor) {
  return held_by_others.load(std::memory_order_relaxed)(tensor);
}

void install_held_by_others(HeldByOthers function) { held_by_others = function; }

}  // namespace horon::torch_detail
