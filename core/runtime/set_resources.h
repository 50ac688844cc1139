// What the collectives of one process set run on.
#pragma once

#include <memory>

namespace horon::core {

class Executor;

struct SetResources {
  SetResources();
  SetResources(std::shared_ptr<void> kept, std::unique_ptr<Executor> runs);
  SetResources(SetResources&&) noexcept;
  SetResources& operator=(SetResources&&) noexcept;
  ~SetResources();

  std::shared_ptr<void> keep_alive;  // outlives the executor
  std::unique_ptr<Executor> executor;
};

}  // namespace horon::core
