// Parameters and bytes from rank to rank, what the ranks agree on, and the statistics of
// SyncBatchNorm.
#include <chrono>
#include <cstdint>
#include <optional>
#include <pybind11/stl.h>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/utils/pybind.h>

#include "horon/core/base/text.h"
#include "horon/ops/session/call_counts.h"
#include "horon/ops/session/running_job.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/modules/synced_normalization.h"
#include "horon/torch_bindings/python/bindings.h"
#include "horon/torch_bindings/state/broadcast_state.h"

namespace horon::python {
namespace {

namespace py = pybind11;
using torch_detail::BatchStatistics;

void broadcast_tensors(const std::vector<std::pair<std::string, at::Tensor>>& tensors, int root,
                       const ProcessSet& process_set) {
  const py::gil_scoped_release without_gil;
  broadcast_parameters(NamedTensors(tensors), root, process_set);
}

py::bytes send_bytes(const std::string& bytes, const std::string& name, int root,
                     const ProcessSet& process_set) {
  std::string received;
  {
    const py::gil_scoped_release without_gil;
    received = broadcast_bytes(bytes, {.name = name, .root = root, .process_set = process_set});
  }
  return py::bytes(received);
}

std::vector<py::bytes> gather_bytes_of_all(const std::string& bytes, const std::string& name,
                                           const ProcessSet& process_set) {
  std::vector<std::string> parts;
  {
    const py::gil_scoped_release without_gil;
    parts = allgather_bytes(bytes, {.name = name, .process_set = process_set});
  }
  return {parts.begin(), parts.end()};
}

// `number`: of this call of the module since the last join(), from 1. Weight and bias may be None.
at::Tensor normalize(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                     const std::optional<at::Tensor>& bias, const BatchStatistics& statistics,
                     const std::string& name, const ProcessSet& process_set, double eps,
                     int64_t number) {
  const py::gil_scoped_release without_gil;
  torch_detail::NormalizationCall call;
  call.name = name;
  call.process_set = process_set;
  call.eps = eps;
  call.number = number;
  call.backward_timeout = std::chrono::minutes(5);
  return torch_detail::normalize(input, weight.value_or(at::Tensor()), bias.value_or(at::Tensor()),
                                 statistics, call);
}

// Pairs of what the ranks should have alike and of what this rank has.
void require_agreement(const std::string& call,
                       const std::vector<std::pair<std::string, std::string>>& pairs,
                       const std::string& own_error, const ProcessSet& process_set) {
  std::vector<torch_detail::Fact> facts;
  for (const auto& [what, value] : pairs) facts.push_back({what, value});
  torch_detail::require_agreement(call, facts, own_error, process_set);
}

// `own_error` is empty on ranks that have none.
void raise_together(const std::string& call, const std::string& own_error,
                    const ProcessSet& process_set) {
  torch_detail::throw_together(ErrorCode::OperationFailed, call, own_error, process_set);
}

// The name of an object without one at its first call, by the counts of C++ on this process set. It
// holds until the next join(), unless keep_objects() has been called before.
std::string name_called_object(const std::string& kind, const ProcessSet& process_set) {
  return torch_detail::given_or_counted_called_object("", kind, process_set.id());
}

void keep_objects(const std::string& kind, const ProcessSet& process_set) {
  ops::call_counts().keep_objects(kind, process_set.id());
}

// For objects that count their calls: ranks that had joined have not made the others' calls.
uint64_t joins_of(const ProcessSet& process_set) {
  return ops::call_counts().times_forgotten(process_set.id());
}

}  // namespace

void bind_state(py::module_& module) {
  module.def("broadcast_tensors", &broadcast_tensors, py::arg("tensors"), py::arg("root"),
             py::arg("process_set"));
  module.def("broadcast_bytes", &send_bytes, py::arg("bytes"), py::arg("name"), py::arg("root"),
             py::arg("process_set"));
  module.def("allgather_bytes", &gather_bytes_of_all, py::arg("bytes"), py::arg("name"),
             py::arg("process_set"));
  py::class_<BatchStatistics>(module, "BatchStatistics")
      .def_readonly("mean", &BatchStatistics::mean)
      .def_readonly("variance", &BatchStatistics::variance)
      .def_readonly("unbiased", &BatchStatistics::unbiased)
      .def_readonly("count", &BatchStatistics::count)
      .def_readonly("small_count", &BatchStatistics::small_count)
      .def_readonly("of_all_ranks", &BatchStatistics::of_all_ranks);
  module.def("gather_statistics", &torch_detail::gather_statistics, py::arg("input"),
             py::arg("name"), py::arg("process_set"), py::call_guard<py::gil_scoped_release>());
  module.def("normalize", &normalize, py::arg("input"), py::arg("weight"), py::arg("bias"),
             py::arg("statistics"), py::arg("name"), py::arg("process_set"), py::arg("eps"),
             py::arg("number"));
  module.def("require_agreement", &require_agreement, py::arg("call"), py::arg("facts"),
             py::arg("own_error"), py::arg("process_set"),
             py::call_guard<py::gil_scoped_release>());
  module.def("raise_together", &raise_together, py::arg("call"), py::arg("own_error"),
             py::arg("process_set"), py::call_guard<py::gil_scoped_release>());
  module.def("refuse_call", &torch_detail::refuse_call, py::arg("name"), py::arg("process_set"),
             py::arg("text"), py::call_guard<py::gil_scoped_release>());
  module.def("name_called_object", &name_called_object, py::arg("kind"), py::arg("process_set"));
  module.def("keep_objects", &keep_objects, py::arg("kind"), py::arg("process_set"));
  module.def("joins_of", &joins_of, py::arg("process_set"));
}

}  // namespace horon::python
