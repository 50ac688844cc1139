// GradientReducer for parameters that Python holds: the same tensors, so that hooks of C++ reduce
// their gradients while Python's backward() runs.
#include <algorithm>
#include <memory>
#include <optional>
#include <pybind11/stl.h>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include "horon/core/base/error.h"
#include "horon/torch_bindings/gradients/gradient_reducer.h"
#include "horon/torch_bindings/python/bindings.h"
#include "horon/torch_bindings/tensors/holders.h"

namespace horon::python {
namespace {

namespace py = pybind11;

// A tensor that Python has seen keeps a Python object, which refers to it. From LibTorch 2.10 on
// that reference counts; before, it does only while Python has the object. The count of Python's
// own references is read without the GIL, for which a hook must not wait.
bool is_held_by_others(const at::Tensor& tensor) {
  const auto object_of = [](const auto& slot) -> PyObject* {
    if constexpr (requires { slot.load_pyobj(); }) {
      return slot.load_pyobj();
    } else {
      return nullptr;
    }
  };
  PyObject* const object = object_of(*tensor.unsafeGetTensorImpl()->pyobj_slot());
  if (object == nullptr) return tensor.use_count() > 1;
  return tensor.use_count() > 2 || Py_REFCNT(object) > 1;  // one is the tensor's
}

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// Destructors and most calls of a reducer may wait for other ranks, so none holds the GIL.
class Reducer {
 public:
  Reducer(const Named& parameters, const GradientReducerOptions& options)
      : reducer_(std::make_unique<GradientReducer>(NamedTensors(parameters), options)) {}
  ~Reducer() {
    const py::gil_scoped_release without_gil;
    quiet_.clear();
    reducer_.reset();
  }
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  GradientReducer& operator*() { return *reducer_; }
  void begin_no_sync() { quiet_.push_back(reducer_->no_sync()); }
  void end_no_sync() { quiet_.pop_back(); }

 private:
  std::unique_ptr<GradientReducer> reducer_;
  std::vector<GradientReducer::NoSync> quiet_;
};

std::unique_ptr<Reducer> make_reducer(const Named& parameters, ReduceOp op,
                                      const ProcessSet& process_set, const std::string& compression,
                                      int passes, double predivide_factor,
                                      std::vector<std::vector<std::string>> groups, int num_groups,
                                      bool sparse_as_dense) {
  GradientReducerOptions options;
  options.op = op;
  options.process_set = process_set;
  options.compression = compression_of(compression);
  options.backward_passes_per_step = passes;
  options.gradient_predivide_factor = predivide_factor;
  options.groups = std::move(groups);
  options.num_groups = num_groups;
  options.sparse_as_dense = sparse_as_dense;
  const py::gil_scoped_release without_gil;
  return std::make_unique<Reducer>(parameters, options);
}

py::dict statistics_of(Reducer& reducer) {
  const GradientStatistics now = (*reducer).statistics();
  py::dict all;
  all["steps"] = now.steps;
  all["buckets"] = now.buckets;
  all["reorders"] = now.reorders;
  all["submitted_in_backward"] = now.submitted_in_backward;
  all["late_parts"] = now.late_parts;
  all["wait_seconds"] = now.wait_seconds;
  return all;
}

// Autograd calls Python for each gradient of a parameter whose dictionary of hooks it knows, also
// if that is empty. Both with the GIL.
void forget_python_hooks(const at::Tensor& parameter) {
  torch::autograd::impl::clear_hooks(parameter);
}

// Whether a DistributedDataParallel reduces its gradient: of all hooks on the node that accumulates
// it, DDP's alone is a lambda of LibTorch's.
bool is_reduced_by_ddp(const at::Tensor& parameter) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
  if (node == nullptr) return false;
  const auto& hooks = node->post_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    return dynamic_cast<const torch::autograd::utils::LambdaPostHook*>(hook.get()) != nullptr;
  });
}

// Makes `hooks` known, and keeps the hooks of C++, which are called after those of Python.
void know_python_hooks(const py::object& parameter, const py::object& hooks) {
  auto& list = torch::autograd::impl::hooks(parameter.cast<at::Tensor>());
  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>> of_cpp = std::move(list);
  list.clear();
  parameter.attr("_backward_hooks") = hooks;
  for (auto& hook : of_cpp) list.push_back(std::move(hook));
}

}  // namespace

Compression compression_of(const std::string& name) {
  if (name == "none") return Compression::None;
  if (name == "fp16") return Compression::Float16;
  if (name == "bf16") return Compression::BFloat16;
  if (name == "int8") return Compression::Int8;
  throw Error(ErrorCode::InvalidArgument, "compression \"" + name + "\" is unknown");
}

void bind_reducer(py::module_& module) {
  torch_detail::install_held_by_others(&is_held_by_others);
  using WithoutGil = py::call_guard<py::gil_scoped_release>;
  module.def("forget_python_hooks", &forget_python_hooks);
  module.def("know_python_hooks", &know_python_hooks);
  module.def("is_reduced_by_ddp", &is_reduced_by_ddp);
  py::class_<Reducer>(module, "Reducer")
      .def(py::init(&make_reducer), py::arg("parameters"), py::arg("op"), py::arg("process_set"),
           py::arg("compression"), py::arg("passes"), py::arg("predivide_factor"),
           py::arg("groups"), py::arg("num_groups"), py::arg("sparse_as_dense"))
      .def(
          "synchronize", [](Reducer& self) { (*self).synchronize(); }, WithoutGil())
      .def(
          "reduce_number_if_any",
          [](Reducer& self, std::optional<double> value) {
            return (*self).reduce_number_if_any(value);
          },
          WithoutGil())
      .def_property_readonly("rounds", [](Reducer& self) { return (*self).statistics().steps; })
      .def(
          "begin_evaluation", [](Reducer& self) { return (*self).begin_evaluation(); },
          WithoutGil())
      .def(
          "leave_evaluation",
          [](Reducer& self, int64_t rounds) { return (*self).leave_evaluation(rounds); },
          WithoutGil())
      .def("refuse_number",
           [](Reducer& self, const std::string& why) { (*self).refuse_number(why); })
      // These wait for the others where an exception has ended backward().
      .def(
          "set_weight", [](Reducer& self, double weight) { (*self).set_weight(weight); },
          WithoutGil())
      .def(
          "set_backward_passes_per_step",
          [](Reducer& self, int passes) { (*self).set_backward_passes_per_step(passes); },
          WithoutGil())
      .def(
          "add_parameters",
          [](Reducer& self, const Named& named) { (*self).add_parameters(NamedTensors(named)); },
          WithoutGil())
      .def(
          "before_zeroing_in_place", [](Reducer& self) { (*self).before_zeroing_in_place(); },
          WithoutGil())
      .def(
          "count_gradients_as_new", [](Reducer& self) { (*self).count_gradients_as_new(); },
          WithoutGil())
      .def("unsynchronized_parameter",
           [](Reducer& self) { return (*self).unsynchronized_parameter(); })
      .def("begin_no_sync", &Reducer::begin_no_sync)
      .def("end_no_sync", &Reducer::end_no_sync)
      .def("statistics", &statistics_of);
}

}  // namespace horon::python
