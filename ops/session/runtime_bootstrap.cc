#include "horon/ops/session/runtime_bootstrap.h"

#include <utility>

#include "horon/ops/session/session_collectives.h"

namespace horon::ops {

RuntimeBootstrap::RuntimeBootstrap(core::Runtime& runtime, std::string name)
    : runtime_(runtime), name_(std::move(name)) {}

std::vector<std::string> RuntimeBootstrap::allgather(Among among, std::string_view mine) const {
  std::vector<std::string> all = gather_from_all(runtime_, name_, std::string(mine));
  if (among == Among::Job) return all;
  std::vector<std::string> of_host;
  for (const int rank : topology().local_ranks) {
    of_host.push_back(std::move(all.at(static_cast<size_t>(rank))));
  }
  return of_host;
}

}  // namespace horon::ops
