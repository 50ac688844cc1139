// The module horon._native: what the Python files of the package call. Every function that may wait
// gives the GIL back meanwhile.
#include <pybind11/pybind11.h>

#include "horon/core/base/version.h"
#include "horon/torch_bindings/python/bindings.h"

PYBIND11_MODULE(_native, module) {
  module.attr("version") = horon::version();
  module.attr("torch_version") = HORON_TORCH_VERSION;
  horon::python::bind_errors(module);
  horon::python::bind_session(module);
  horon::python::bind_collectives(module);
  horon::python::bind_reducer(module);
  horon::python::bind_state(module);
  horon::python::bind_process_group(module);
}
