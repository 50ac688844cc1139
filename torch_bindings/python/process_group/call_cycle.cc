#include "horon/torch_bindings/python/process_group/call_cycle.h"

#include <algorithm>

namespace horon::python::process_group {

size_t CallCycle::length() const {
  for (size_t calls = 1; calls <= kLongest; ++calls) {
    if (repeats_after(calls)) return calls;
  }
  return 0;
}

bool CallCycle::repeats_after(size_t calls) const {
  const size_t repeated = std::max(calls, kLeastRepeated);
  if (calls + repeated > count_) return false;
  for (size_t i = 0; i < repeated; ++i) {
    if (back(i) != back(i + calls)) return false;
  }
  return true;
}

}  // namespace horon::python::process_group
