#include "horon/torch_bindings/collectives/objects.h"

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::torch_detail {
namespace {

using core::concat;

}  // namespace

at::Tensor without_neighbours(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return tensor;
  if (tensor.storage().nbytes() == tensor.nbytes()) return tensor;
  return tensor.detach().clone().requires_grad_(tensor.requires_grad());
}

std::vector<at::Tensor> without_neighbours(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> own;
  own.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) own.push_back(without_neighbours(tensor));
  return own;
}

std::string write_or_refuse(const std::string& name, const ProcessSet& set,
                            const std::function<std::string()>& write) {
  std::string reason;
  try {
    return write();
  } catch (...) {
    reason = core::current_error().what();
  }
  refuse_call(name, set, concat("object \"", name, "\" can't be written: ", reason));
}

void throw_unreadable(const std::string& name, int source) {
  throw Error(ErrorCode::OperationFailed,
              concat("object \"", name, "\" of rank ", source,
                     " can't be read here: ", core::current_error().what()));
}

void throw_joined(const std::string& name, int source) {
  throw Error(ErrorCode::OperationFailed,
              concat("object \"", name, "\": rank ", source,
                     " has called join(), and gives no objects any more"));
}

}  // namespace horon::torch_detail
