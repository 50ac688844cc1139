// The parts of the module horon._native; each is in the file of its name.
#pragma once

#include <pybind11/pybind11.h>
#include <string>

#include "horon/core/base/entry_spec.h"

namespace horon::python {

void bind_errors(pybind11::module_& module);
void bind_session(pybind11::module_& module);
void bind_collectives(pybind11::module_& module);
void bind_reducer(pybind11::module_& module);
void bind_state(pybind11::module_& module);
void bind_process_group(pybind11::module_& module);

// "none", "fp16", "bf16", "int8". Throws Error(InvalidArgument).
Compression compression_of(const std::string& name);

// Whether waits answer Ctrl-C from now on: enabled between init() and shutdown().
void let_waits_be_interrupted(bool enabled);
// Returns when no thread completes a future of a process group any more, but does not wait for
// ever. After shutdown(), without the GIL.
void let_futures_complete();

}  // namespace horon::python
