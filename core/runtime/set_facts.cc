#include "horon/core/runtime/set_facts.h"

#include <utility>

#include "horon/core/execution/executor.h"

namespace horon::core {

std::shared_ptr<const SetFacts> SetFacts::of(std::vector<int> ranks,
                                             const SetResources& resources) {
  auto facts = std::make_shared<SetFacts>();
  facts->ranks = std::move(ranks);
  const ScratchPool& scratch = resources.executor->scratch();
  for (size_t kind = 0; kind < facts->devices.size(); ++kind) {
    const MemoryDomain* const domain = scratch.find(static_cast<DeviceKind>(kind));
    facts->devices[kind].unavailable = resources.unavailable[kind];
    facts->devices[kind].mixed = resources.mixed[kind];
    if (domain != nullptr) facts->devices[kind].index = domain->device_index();
  }
  facts->runnable = std::make_shared<const RunnableCalls>(resources.executor->lent_ops());
  return facts;
}

}  // namespace horon::core
