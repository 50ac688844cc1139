// The memory of other ranks, as long as it is needed.
#pragma once

#include "horon/core/base/error.h"

namespace horon::ops {

// Calls map(), which maps memory of other ranks and may throw. Returns false if this rank has
// nothing left to do there, as is_needed() tells. Then others have done it. They may have ended
// their part of the collective and given their memory back, even while it is mapped here.
template <class IsNeeded, class Map>
bool map_if_needed(const IsNeeded& is_needed, const Map& map) {
  if (!is_needed()) return false;
  try {
    map();
  } catch (const Error&) {
    if (is_needed()) throw;
    return false;
  }
  return true;
}

}  // namespace horon::ops
