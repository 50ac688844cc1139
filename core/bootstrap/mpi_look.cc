#include "horon/core/bootstrap/mpi_look.h"

#include <dlfcn.h>

#include "horon/core/base/config.h"

namespace horon::core {
namespace {

// Returns what was set before. A function of the library below Open MPI, from 1.3 to 5.0. No
// installed header declares it, so it is looked up.
using SetYield = bool (*)(bool);

SetYield set_yield() noexcept {
  static const auto function =
      reinterpret_cast<SetYield>(::dlsym(RTLD_DEFAULT, "opal_progress_set_yield_when_idle"));
  return function;
}

}  // namespace

void let_mpi_yield() {
  if (set_yield() == nullptr || environment_has("OMPI_MCA_mpi_yield_when_idle")) return;
  set_yield()(true);
}

MpiLook::MpiLook() noexcept : yields_(set_yield() != nullptr && set_yield()(false)) {}

MpiLook::~MpiLook() {
  if (yields_) set_yield()(true);
}

}  // namespace horon::core
