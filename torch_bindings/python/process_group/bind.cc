// The process group for Python: horon/process_group.py registers it.
#include <chrono>
#include <pybind11/stl.h>
#include <string>
#include <vector>

#include <torch/csrc/utils/pybind.h>

#include "horon/core/base/error.h"
#include "horon/torch_bindings/python/bindings.h"
#include "horon/torch_bindings/python/process_group/backend.h"

namespace horon::python {
namespace {

namespace py = pybind11;

// The average of a tensor over the ranks of a group of the backend "horon", in place.
c10::intrusive_ptr<::c10d::Work> compressed_average(
    const c10::intrusive_ptr<::c10d::Backend>& group, const at::Tensor& tensor,
    const std::string& compression) {
  auto* const horon = dynamic_cast<process_group::HoronBackend*>(group.get());
  if (horon == nullptr) {
    throw Error(ErrorCode::InvalidArgument,
                "hooks of horon.comm_hooks are for groups of the backend \"horon\", not \"" +
                    group->getBackendName() + "\"");
  }
  ::c10d::AllreduceOptions options;
  options.reduceOp = ::c10d::ReduceOp::AVG;
  return horon->compressed_allreduce(tensor, options, compression_of(compression));
}

}  // namespace

void bind_process_group(py::module_& module) {
  module.def(
      "make_process_group",
      [](const ProcessSet& set, double timeout_s) {
        const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3));
        return c10::intrusive_ptr<::c10d::Backend>(
            c10::make_intrusive<process_group::HoronBackend>(set, timeout));
      },
      py::arg("process_set"), py::arg("timeout_s"), py::call_guard<py::gil_scoped_release>());
  module.def("compressed_average", &compressed_average, py::arg("group"), py::arg("tensor"),
             py::arg("compression"), py::call_guard<py::gil_scoped_release>());
}

void let_futures_complete() { process_group::let_completions_end(); }

}  // namespace horon::python
