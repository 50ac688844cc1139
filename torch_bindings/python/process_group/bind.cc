// The process group for Python: horon/process_group.py registers it.
#include <chrono>
#include <functional>
#include <optional>
#include <pybind11/stl.h>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/utils/pybind.h>

#include "horon/core/base/error.h"
#include "horon/torch_bindings/python/bindings.h"
#include "horon/torch_bindings/python/process_group/backend.h"
#include "horon/torch_bindings/python/process_group/work.h"

namespace horon::python {
namespace {

namespace py = pybind11;
using process_group::GroupOptions;
using process_group::HoronBackend;

// The average of a tensor over the ranks of a group of the backend "horon", in place.
c10::intrusive_ptr<::c10d::Work> compressed_average(
    const c10::intrusive_ptr<::c10d::Backend>& group, const at::Tensor& tensor,
    const std::string& compression) {
  auto* const horon = dynamic_cast<HoronBackend*>(group.get());
  if (horon == nullptr) {
    throw Error(ErrorCode::InvalidArgument,
                "hooks of horon.comm_hooks need a group of the backend \"horon\", not \"" +
                    group->getBackendName() + "\"");
  }
  ::c10d::AllreduceOptions options;
  options.reduceOp = ::c10d::ReduceOp::AVG;
  return horon->compressed_allreduce(tensor, options, compression_of(compression));
}

// process_group::WithoutGil
void wait_without_gil(const std::function<void()>& wait) {
  std::optional<py::gil_scoped_release> released;
  if (PyGILState_Check() != 0) released.emplace();
  wait();
}

// The members of a part meet in Python, as those of new_group() do.
c10::intrusive_ptr<::c10d::Backend> make_part(const std::vector<uint64_t>& ranks,
                                              std::chrono::milliseconds timeout) {
  const py::gil_scoped_acquire gil;
  const double timeout_s = static_cast<double>(timeout.count()) * 1e-3;
  return py::module_::import("horon.process_group")
      .attr("make_part")(ranks, timeout_s)
      .cast<c10::intrusive_ptr<::c10d::Backend>>();
}

// Attributes that torch's Python, up to 2.11 at least, asks for on classes of backends that can be
// split, and that their base lacks.
void bind_classes(py::module_& module) {
  (void)py::module_::import("torch.distributed");  // it has the bases
  py::class_<GroupOptions, c10::intrusive_ptr<GroupOptions>, ::c10d::Backend::Options>(
      module, "GroupOptions")
      .def("__deepcopy__", [](const GroupOptions& options, const py::dict& /*copied*/) {
        return c10::make_intrusive<GroupOptions>(options);
      });
  py::class_<HoronBackend, c10::intrusive_ptr<HoronBackend>, ::c10d::Backend>(module,
                                                                              "GroupBackend")
      .def_property_readonly(
          "options",
          [](HoronBackend& group) {
            return c10::static_intrusive_pointer_cast<GroupOptions>(group.getBackendOptions());
          })
      // Called by ranks that are not in a new group. Its members need nothing from them.
      .def("perform_nocolor_split", [](const HoronBackend&, const py::object& /*device*/) {});
}

}  // namespace

void bind_process_group(py::module_& module) {
  bind_classes(module);
  process_group::install_without_gil(&wait_without_gil);
  module.def(
      "make_process_group",
      [](const ProcessSet& set, double timeout_s, std::vector<uint64_t> ranks) {
        const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1e3));
        return c10::intrusive_ptr<::c10d::Backend>(c10::make_intrusive<HoronBackend>(
            set, timeout, process_group::Parts{std::move(ranks), &make_part}));
      },
      py::arg("process_set"), py::arg("timeout_s"), py::arg("ranks"),
      py::call_guard<py::gil_scoped_release>());
  module.def("compressed_average", &compressed_average, py::arg("group"), py::arg("tensor"),
             py::arg("compression"), py::call_guard<py::gil_scoped_release>());
}

void let_futures_complete() { process_group::let_completions_end(); }

}  // namespace horon::python
