#include "horon/torch_bindings/python/own_memory.h"

namespace horon::python {

std::string fault_of_memory(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->is_python_dispatch()) return {};
  // Its pointer is null; to ask in the usual way is an error of LibTorch's for some of them.
  if (!tensor.has_storage() ||
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks() != nullptr) {
    return {};
  }
  return "stands for other tensors, as a DTensor does, and has no memory of its own; give what it "
         "stands for (to_local() or full_tensor() of a DTensor)";
}

}  // namespace horon::python
