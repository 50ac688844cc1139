#include "info_facts.h"

namespace horon::tools {

std::vector<BuildFact> torch_facts() { return {{"libtorch", "not in this build"}}; }

}  // namespace horon::tools
