// Errors of Horon as exceptions of Python, and Ctrl-C while a thread waits.
#include <exception>
#include <memory>
#include <pybind11/pybind11.h>
#include <string>
#include <thread>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/wait_check.h"
#include "horon/torch_bindings/python/bindings.h"

namespace horon::python {
namespace {

namespace py = pybind11;

// What a signal handler of Python has raised while a thread waited; null: nothing. It becomes the
// exception of the call that waited, on that thread alone: others wait on. Guarded by the GIL; on
// the heap for ever, since it may be looked at while the process ends.
struct Raised {
  std::unique_ptr<py::error_already_set> error;
  std::thread::id thread;
  bool is_of_this_thread() const {
    return error != nullptr && thread == std::this_thread::get_id();
  }
};
Raised& raised_by_signal() {
  static auto& raised = *new Raised;
  return raised;
}

// Some waits are within backward(), which LibTorch leaves with the text of an error only. Python
// calls this soon after.
int raise_late(void*) {
  const std::unique_ptr<py::error_already_set> raised = std::move(raised_by_signal().error);
  if (raised == nullptr) return 0;
  raised->restore();
  return -1;
}

// core::WaitCheck: on a thread that waits, without the GIL.
void ask_python() {
  if (Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire gil;
  if (!raised_by_signal().is_of_this_thread()) {
    if (PyErr_CheckSignals() == 0) return;  // always so except on the main thread
    raised_by_signal() = {std::make_unique<py::error_already_set>(), std::this_thread::get_id()};
    (void)Py_AddPendingCall(raise_late, nullptr);
  }
  throw Error(ErrorCode::Timeout, "a signal interrupted the wait; the collective goes on");
}

void set_exception(const Error& error) {
  if (raised_by_signal().is_of_this_thread()) {
    const std::unique_ptr<py::error_already_set> raised = std::move(raised_by_signal().error);
    return raised->restore();
  }
  const py::object made = py::module_::import("horon.errors")
                              .attr("make")(std::string(to_string(error.code())), error.what());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.ptr())), made.ptr());
}

}  // namespace

void let_waits_be_interrupted(bool enabled) {
  core::set_wait_check(enabled ? &ask_python : nullptr);
}

void bind_errors(py::module_&) {
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Error& error) {
      set_exception(error);
    }
  });
}

}  // namespace horon::python
