// The parts of the module horon._native; each is in the file of its name.
#pragma once

#include <pybind11/pybind11.h>

namespace horon::python {

void bind_errors(pybind11::module_& module);
void bind_session(pybind11::module_& module);
void bind_collectives(pybind11::module_& module);
void bind_reducer(pybind11::module_& module);
void bind_state(pybind11::module_& module);

// Waits answer Ctrl-C from now on; for between init() and shutdown().
void let_waits_be_interrupted(bool enabled);

}  // namespace horon::python
