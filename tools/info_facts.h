// Facts that depend on the build. CMake picks the file that defines each function.
#pragma once

#include <vector>

#include "horon/ops/session/session.h"

namespace horon::tools {

// Facts about LibTorch. A build without it has one fact that says so.
std::vector<BuildFact> torch_facts();

}  // namespace horon::tools
