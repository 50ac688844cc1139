// Which devices this rank works on in a process set.
#pragma once

#include <array>
#include <string>

#include "horon/core/base/entry_spec.h"

namespace horon::core {

inline constexpr int kNoDevice = -1;
// The device of one kind.
struct RankDevice {
  int index = kNoDevice;
  std::string unavailable;  // why there is none; empty: this build does not know the kind
  // See SetResources::mixed.
  bool mixed = false;
};
using RankDevices = std::array<RankDevice, kDeviceKindCount>;

inline RankDevices host_alone() {
  RankDevices devices;
  devices[static_cast<size_t>(DeviceKind::Host)].index = 0;
  return devices;
}

}  // namespace horon::core
