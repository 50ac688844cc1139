// The facts against which a member checks a call on a process set.
#pragma once

#include <memory>
#include <vector>

#include "horon/core/runtime/rank_devices.h"
#include "horon/core/runtime/runnable_calls.h"
#include "horon/core/runtime/set_resources.h"

namespace horon::core {

struct SetFacts {
  std::vector<int> ranks;  // the members, ascending
  RankDevices devices;
  std::shared_ptr<const RunnableCalls> runnable;

  static std::shared_ptr<const SetFacts> of(std::vector<int> ranks, const SetResources& resources);
};

}  // namespace horon::core
