// A pause for spinning loops: the hardware thread that shares the core gets the execution units.
#pragma once

namespace horon::core {

// Defined in cpu_relax_x86.cc, _aarch64.cc or _generic.cc; the build picks one.
void cpu_relax() noexcept;

}  // namespace horon::core
