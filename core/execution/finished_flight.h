// A collective that has nothing to do. All ranks know that, so none waits.
#pragma once

#include "horon/core/execution/collective_op.h"

namespace horon::core {

class FinishedFlight final : public InFlight {
 public:
  Progress step() override { return Progress::Done; }
};

}  // namespace horon::core
