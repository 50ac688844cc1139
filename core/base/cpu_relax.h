// Tells the core that this is a spinning loop, so that its sibling thread gets the execution units.
#pragma once

namespace horon::core {

// One of cpu_relax_x86.cc and cpu_relax_generic.cc, chosen by the build.
void cpu_relax() noexcept;

}  // namespace horon::core
