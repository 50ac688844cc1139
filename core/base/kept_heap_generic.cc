#include "horon/core/base/kept_heap.h"

namespace horon::core {

void KeptHeap::keep() noexcept {}
void KeptHeap::release() noexcept {}

}  // namespace horon::core
