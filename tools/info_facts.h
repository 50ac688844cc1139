// Facts that depend on what the build has; each is defined in the file that CMake picks.
#pragma once

#include <vector>

#include "horon/ops/session/session.h"

namespace horon::tools {

// Of LibTorch; one fact that says so in a build without it.
std::vector<core::BuildFact> torch_facts();

}  // namespace horon::tools
