#include "horon/core/runtime/set_resources.h"

#include <utility>

#include "horon/core/execution/executor.h"
#include "horon/core/negotiation/gate.h"

namespace horon::core {

SetResources::SetResources() = default;
SetResources::SetResources(std::shared_ptr<void> kept, std::unique_ptr<Executor> runs,
                           std::unique_ptr<Gate> starts)
    : keep_alive(std::move(kept)), executor(std::move(runs)), gate(std::move(starts)) {}
SetResources::SetResources(SetResources&&) noexcept = default;
SetResources& SetResources::operator=(SetResources&&) noexcept = default;
SetResources::~SetResources() = default;

}  // namespace horon::core
