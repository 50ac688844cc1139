// The process group for Python: horon/process_group.py registers it.
#include <chrono>
#include <pybind11/stl.h>
#include <string>
#include <vector>

#include <torch/csrc/utils/pybind.h>

#include "horon/torch_bindings/python/bindings.h"
#include "horon/torch_bindings/python/process_group/backend.h"

namespace horon::python {
namespace {

namespace py = pybind11;

}  // namespace

void bind_process_group(py::module_& module) {
  module.def(
      "make_process_group",
      [](const std::string& group, const ProcessSet& set, double timeout_s) {
        const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3));
        return c10::intrusive_ptr<::c10d::Backend>(
            c10::make_intrusive<process_group::HoronBackend>(group, set, timeout));
      },
      py::arg("group"), py::arg("process_set"), py::arg("timeout_s"),
      py::call_guard<py::gil_scoped_release>());
}

void let_futures_complete() { process_group::let_completions_end(); }

}  // namespace horon::python
