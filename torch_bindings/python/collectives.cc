// Collectives on tensors, and their handles.
//
// A call gets all tensors of a group and everything that Python says of them at once. Horon holds
// detached tensors: no thread of C++ that lets go of one then needs the GIL.
#include <cstdint>
#include <memory>
#include <optional>
#include <pybind11/stl.h>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torch/csrc/utils/pybind.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/pending_collective.h"
#include "horon/torch_bindings/collectives/shared_tensor.h"
#include "horon/torch_bindings/collectives/sparse_allreduce.h"
#include "horon/torch_bindings/python/bindings.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::python {
namespace {

namespace py = pybind11;
using torch_detail::Into;
using torch_detail::PendingCollective;
using Pending = std::shared_ptr<PendingCollective>;
using Tensors = std::vector<at::Tensor>;

struct Call {
  CollectiveKind kind = CollectiveKind::Allreduce;
  std::string kind_name;  // what an unnamed call is called after
  std::string name;
  ProcessSet process_set;
  bool grouped = false;
  bool in_place = false;
  ReduceOp op = ReduceOp::Sum;
  int root = 0;
  double prescale = 1;
  double postscale = 1;
  std::vector<int64_t> splits;
  std::string remark;  // of PendingCollective
};

// Names of calls whose end Python has not seen yet. A program that keeps its handles then gets the
// same error on all ranks, whether or not the first call has ended meanwhile. Guarded by the GIL.
class UnseenNames {
 public:
  // Throws Error(DuplicateName).
  void refuse_duplicate(const Call& call) const {
    if (call.name.empty()) return;
    const auto known = calls_.find(key(call));
    if (known == calls_.end() || known->second.expired()) return;
    throw Error(ErrorCode::DuplicateName,
                core::concat("tensor \"", call.name, "\": a call of this name is in flight; give ",
                             "another name, or synchronize() that call first"));
  }

  void add(const Call& call, const Pending& pending) {
    if (call.name.empty()) return;
    calls_[key(call)] = pending;
    if (calls_.size() < next_sweep_) return;
    std::erase_if(calls_, [](const auto& each) { return each.second.expired(); });
    next_sweep_ = 2 * calls_.size() + kSweepMin;
  }

  void forget(const Call& call, const Pending& pending) {
    if (call.name.empty()) return;
    const auto known = calls_.find(key(call));
    if (known != calls_.end() && known->second.lock() == pending) calls_.erase(known);
  }

 private:
  static constexpr size_t kSweepMin = 1024;
  static std::string key(const Call& call) {
    return core::concat(call.process_set.id(), " ", call.name);
  }
  std::unordered_map<std::string, std::weak_ptr<PendingCollective>> calls_;
  size_t next_sweep_ = kSweepMin;
};

UnseenNames& unseen_names() {
  static auto& names = *new UnseenNames;
  return names;
}

void add_tensor(PendingCollective& pending, const Call& call, const at::Tensor& tensor) {
  const bool is_root = call.root == rank();
  switch (call.kind) {
    case CollectiveKind::Allreduce:
    case CollectiveKind::Broadcast:
      return pending.add(tensor, call.in_place ? Into::Same : Into::New);
    case CollectiveKind::Alltoall:
      return pending.add_rows(tensor,
                              call.splits.empty() ? pending.equal_splits(tensor) : call.splits);
    case CollectiveKind::Scatter:
      if (is_root) {
        return pending.add_rows(tensor,
                                call.splits.empty() ? pending.even_splits(tensor) : call.splits);
      }
      return pending.add_rows(tensor);
    default:
      return pending.add_rows(tensor);
  }
}

Pending make(const Call& call, const Tensors& tensors) {
  auto pending = std::make_shared<PendingCollective>(call.kind, call.kind_name, call.name,
                                                     call.process_set, call.grouped);
  if (tensors.empty()) {
    pending->refuse(Error(ErrorCode::InvalidArgument,
                          core::concat("\"", pending->name, "\": the group has no tensors")));
  }
  pending->spec.reduce_op = call.op;
  pending->spec.prescale = call.prescale;
  pending->spec.postscale = call.postscale;
  pending->remark = call.remark;
  if (call.kind == CollectiveKind::Reducescatter) pending->spec.splits = call.splits;
  if (core::has_root(call.kind)) pending->set_root(call.root);
  pending->reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    try {
      torch_detail::require_memory(tensor, pending->name);
    } catch (const Error& error) {
      pending->refuse(error);
    }
    add_tensor(*pending, call, tensor.detach());
  }
  return pending;
}

// For a call that Python has found wrong, so that there is nothing to submit.
void refuse(const Call& call, const std::string& why) {
  unseen_names().refuse_duplicate(call);
  const py::gil_scoped_release without_gil;  // of calls without a name, the oldest may have to end
  const PendingCollective pending(call.kind, call.kind_name, call.name, call.process_set,
                                  call.grouped);
  // The other ranks are told the name beside the reason.
  if (is_initialized()) ops::runtime().refuse(pending.name, why, call.process_set.id());
  throw Error(ErrorCode::InvalidArgument, core::concat("tensor \"", pending.name, "\": ", why));
}

class Handle {
 public:
  Handle(Call call, Pending pending) : call_(std::move(call)), pending_(std::move(pending)) {}

  bool poll() const {
    if (!pending_->state().finished()) return false;
    unseen_names().forget(call_, pending_);
    return true;
  }

  Tensors wait() const {
    Tensors results;
    try {
      const py::gil_scoped_release without_gil;
      (void)pending_->state().wait(std::nullopt);
      results = pending_->results();
    } catch (...) {
      (void)poll();
      throw;
    }
    unseen_names().forget(call_, pending_);
    return results;
  }

  // After wait(): the rows of each result that came from each member of the set.
  std::vector<std::vector<int64_t>> received() const { return pending_->received_rows(); }
  // After wait(): what Average has divided by.
  int contributors() const { return pending_->state().outcome().contributors; }

 private:
  const Call call_;
  const Pending pending_;
};

Handle submit(Call call, const Tensors& tensors) {
  unseen_names().refuse_duplicate(call);
  Pending pending;
  {
    const py::gil_scoped_release without_gil;
    pending = make(call, tensors);
    pending->submit(pending);
  }
  unseen_names().add(call, pending);
  return {std::move(call), std::move(pending)};
}

// submit() and wait() in one, on this thread.
Handle run(Call call, const Tensors& tensors) {
  unseen_names().refuse_duplicate(call);
  Pending pending;
  {
    const py::gil_scoped_release without_gil;
    pending = make(call, tensors);
    pending->run(pending);
  }
  return {std::move(call), std::move(pending)};
}

class SparsePending {
 public:
  explicit SparsePending(SparseHandle handle) : handle_(std::move(handle)) {}
  bool poll() const { return handle_.poll(); }
  at::Tensor wait() const {
    const py::gil_scoped_release without_gil;
    return handle_.wait();
  }

 private:
  const SparseHandle handle_;
};

// None is refused, as the other ranks are told.
SparsePending submit_sparse(const std::optional<at::Tensor>& tensor, const std::string& name,
                            ReduceOp op, const ProcessSet& process_set) {
  const py::gil_scoped_release without_gil;
  return SparsePending(
      sparse_allreduce_async(tensor ? tensor->detach() : at::Tensor(),
                             {.name = name, .op = op, .process_set = process_set}));
}

void bind_kinds(py::module_& module) {
  py::enum_<CollectiveKind>(module, "Kind")
      .value("allreduce", CollectiveKind::Allreduce)
      .value("broadcast", CollectiveKind::Broadcast)
      .value("allgather", CollectiveKind::Allgather)
      .value("reducescatter", CollectiveKind::Reducescatter)
      .value("alltoall", CollectiveKind::Alltoall)
      .value("gather", CollectiveKind::Gather)
      .value("scatter", CollectiveKind::Scatter);
  py::enum_<ReduceOp>(module, "ReduceOp")
      .value("Sum", ReduceOp::Sum)
      .value("Average", ReduceOp::Average)
      .value("Min", ReduceOp::Min)
      .value("Max", ReduceOp::Max)
      .value("Product", ReduceOp::Product)
      .value("BitAnd", ReduceOp::BitAnd)
      .value("BitOr", ReduceOp::BitOr)
      .value("BitXor", ReduceOp::BitXor)
      .value("Adasum", ReduceOp::Adasum);
}

}  // namespace

void bind_collectives(py::module_& module) {
  bind_kinds(module);
  py::class_<Call>(module, "Call")
      .def(py::init([](CollectiveKind kind, std::string kind_name, std::string name,
                       const ProcessSet& process_set, bool grouped, bool in_place, ReduceOp op,
                       int root, double prescale, double postscale, std::vector<int64_t> splits,
                       std::string remark) {
             return Call{kind,
                         std::move(kind_name),
                         std::move(name),
                         process_set,
                         grouped,
                         in_place,
                         op,
                         root,
                         prescale,
                         postscale,
                         std::move(splits),
                         std::move(remark)};
           }),
           py::arg("kind"), py::arg("kind_name"), py::arg("name"), py::arg("process_set"),
           py::arg("grouped") = false, py::arg("in_place") = false, py::arg("op") = ReduceOp::Sum,
           py::arg("root") = 0, py::arg("prescale") = 1.0, py::arg("postscale") = 1.0,
           py::arg("splits") = std::vector<int64_t>(), py::arg("remark") = "");
  py::class_<Handle>(module, "Handle")
      .def("poll", &Handle::poll)
      .def("wait", &Handle::wait)
      .def("received", &Handle::received)
      .def("contributors", &Handle::contributors);
  module.def("refuse", &refuse, py::arg("call"), py::arg("why"),
             "Tells the other ranks, and raises it.");
  module.def("submit", &submit, py::arg("call"), py::arg("tensors"));
  module.def("run", &run, py::arg("call"), py::arg("tensors"));
  py::class_<SparsePending>(module, "SparseHandle")
      .def("poll", &SparsePending::poll)
      .def("wait", &SparsePending::wait);
  module.def(
      "shared_zeros",
      [](const std::vector<int64_t>& shape, at::ScalarType dtype) {
        return shared_zeros(shape, dtype);
      },
      py::arg("shape"), py::arg("dtype"), py::call_guard<py::gil_scoped_release>());
  module.def("submit_sparse", &submit_sparse, py::arg("tensor"), py::arg("name"), py::arg("op"),
             py::arg("process_set"));
}

}  // namespace horon::python
