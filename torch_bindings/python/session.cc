// Start, ranks, process sets, stop.
#include "horon/ops/session/session.h"

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/utils/pybind.h>

#include "horon/core/base/error.h"
#include "horon/core/base/statistics.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/torch_bindings/python/bindings.h"
#include "horon/torch_bindings/session.h"

namespace horon::python {
namespace {

namespace py = pybind11;
using WithoutGil = py::call_guard<py::gil_scoped_release>;

// A barrier whose time was over on this rank, or whose wait Ctrl-C has ended. The next one is that
// barrier again, as for the ranks that have called one only. (If those give up as well and all call
// anew, one more time limit passes before they meet.)
class OpenBarrier {
 public:
  static OpenBarrier& of_process() {
    static auto& one = *new OpenBarrier;
    return one;
  }
  void keep(std::optional<BarrierHandle> barrier) {
    const std::lock_guard lock(mutex_);
    barrier_ = std::move(barrier);
  }
  std::optional<BarrierHandle> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(barrier_, std::nullopt);
  }

 private:
  std::mutex mutex_;
  std::optional<BarrierHandle> barrier_;
};

// `mpi_comm`: the address of an MPI_Comm; 0: the communicator of all ranks.
void start(std::map<std::string, std::string> knobs, std::vector<std::vector<int>> process_sets,
           uintptr_t mpi_comm) {
  InitOptions options;
  options.set = std::move(knobs);
  options.process_sets = std::move(process_sets);
  options.mpi_comm = reinterpret_cast<const void*>(mpi_comm);
  let_waits_be_interrupted(true);  // those of init() too
  try {
    init(options);
  } catch (...) {
    let_waits_be_interrupted(false);
    throw;
  }
}

void stop() {
  let_waits_be_interrupted(false);
  shutdown();
  OpenBarrier::of_process().keep(std::nullopt);
  let_futures_complete();
}

// As NCCL_VERSION_CODE; 0: this build or this machine has none.
int nccl_version() { return is_initialized() ? ops::gpu()->nccl_version() : 0; }

std::map<std::string, std::string> facts() {
  std::map<std::string, std::string> all;
  for (const BuildFact& fact : build_facts()) all[fact.name] = fact.value;
  return all;
}

std::map<std::string, uint64_t> counts() {
  const Statistics now = statistics();
  std::map<std::string, uint64_t> all;
  for (const StatisticName& each : kStatisticNames) all[std::string(each.name)] = now.*each.field;
  return all;
}

// All ranks get this error. shutdown() then waits only for a limited time for those that still
// save.
void end_by_exception(const std::string& what) {
  ops::runtime().fail(Error(ErrorCode::OperationFailed,
                            core::concat("rank ", rank(), " ended with an exception: ", what)));
}

// Of all ranks. Throws Error(Timeout).
void barrier_within(double limit_s) {
  std::optional<BarrierHandle> barrier = OpenBarrier::of_process().take();
  if (!barrier) barrier = barrier_async();
  const std::chrono::duration<double> limit(limit_s);
  try {
    barrier->wait(std::chrono::duration_cast<std::chrono::nanoseconds>(limit));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Timeout) OpenBarrier::of_process().keep(*barrier);
    throw;
  }
}

}  // namespace

void bind_session(py::module_& module) {
  module.def("init", &start, py::arg("knobs"), py::arg("process_sets"), py::arg("mpi_comm"),
             WithoutGil());
  module.def("shutdown", &stop, WithoutGil());
  module.def("end_by_exception", &end_by_exception, WithoutGil());
  module.def("is_initialized", &is_initialized);
  module.def("is_mixed", [](const ProcessSet& set) {
    return set.includes_me() && ops::runtime().is_mixed(set.id(), DeviceKind::Cuda);
  });
  module.def("rank", &rank);
  module.def("size", &size);
  module.def("local_rank", &local_rank);
  module.def("local_size", &local_size);
  module.def("cross_rank", &cross_rank);
  module.def("cross_size", &cross_size);
  module.def("is_homogeneous", &is_homogeneous);
  module.def("device", &device, py::arg("process_set"), WithoutGil());
  module.def("nccl_version", &nccl_version);
  module.def("build_facts", &facts, WithoutGil());
  module.def("statistics", &counts);
  module.def("start_timeline", &start_timeline, py::arg("path"), WithoutGil());
  module.def("stop_timeline", &stop_timeline, WithoutGil());

  py::class_<ProcessSet>(module, "ProcessSet")
      .def(py::init<>())
      .def_property_readonly("id", &ProcessSet::id)
      .def("ranks", &ProcessSet::ranks)
      .def("size", &ProcessSet::size)
      .def("rank", &ProcessSet::rank);
  module.def("add_process_set", &add_process_set, py::arg("ranks"), WithoutGil());
  module.def("remove_process_set", &remove_process_set, py::arg("process_set"), WithoutGil());
  module.def("add_process_set_among", &add_process_set_among, py::arg("ranks"), py::arg("number"),
             WithoutGil());
  module.attr("first_group_number") = core::kFirstGroupNumber;
  module.def("leave_process_set", &leave_process_set, py::arg("process_set"), WithoutGil());
  module.def("process_sets", &process_sets);
  module.def("barrier", &barrier, py::arg("process_set"), WithoutGil());
  module.def("barrier_within", &barrier_within, py::arg("limit_s"), WithoutGil());
  module.def("join", &join, py::arg("process_set"), WithoutGil());
}

}  // namespace horon::python
