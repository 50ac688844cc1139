// What the collectives of one process set run on.
#pragma once

#include <memory>

namespace horon::core {

class Executor;
class Gate;

struct SetResources {
  SetResources();
  SetResources(std::shared_ptr<void> kept, std::unique_ptr<Executor> runs,
               std::unique_ptr<Gate> starts = nullptr);
  SetResources(SetResources&&) noexcept;
  SetResources& operator=(SetResources&&) noexcept;
  ~SetResources();

  std::shared_ptr<void> keep_alive;  // outlives the others
  std::unique_ptr<Executor> executor;
  std::unique_ptr<Gate> gate;  // on all members or on none; may be null
};

}  // namespace horon::core
