#include "horon/core/runtime/set_resources.h"

#include <utility>

#include "horon/core/execution/executor.h"

namespace horon::core {

SetResources::SetResources() = default;
SetResources::SetResources(std::shared_ptr<void> kept, std::unique_ptr<Executor> runs)
    : keep_alive(std::move(kept)), executor(std::move(runs)) {}
SetResources::SetResources(SetResources&&) noexcept = default;
SetResources& SetResources::operator=(SetResources&&) noexcept = default;
SetResources::~SetResources() = default;

}  // namespace horon::core
