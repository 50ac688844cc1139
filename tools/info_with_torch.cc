#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include "info_facts.h"

namespace horon::tools {

std::vector<BuildFact> torch_facts() {
  return {{"libtorch", TORCH_VERSION},
          {"libtorch cpu", at::get_cpu_capability()},
          {"libtorch threads", std::to_string(at::get_num_threads())}};
}

}  // namespace horon::tools
