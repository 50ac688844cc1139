// One entry on its way from the program to the runtime thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "horon/core/base/entry_spec.h"
#include "horon/core/execution/entry_work.h"
#include "horon/core/execution/memory_domain.h"
#include "horon/core/runtime/handle.h"

namespace horon::core {

struct Submission {
  std::string name;  // at most kNameBytesMax bytes, unique among entries in flight on this rank
  std::shared_ptr<const EntrySpec>
      spec;  // shared, so that a training step copies no names and shapes

  // The elements of the spec's parts, in order. Adjacent parts that lie one behind the other in
  // memory may be given as one MemoryPart (a gradient bucket is one): then nothing is packed.
  std::vector<MemoryPart> memory;

  // Allgather only: called on the runtime thread when the number of elements of the result is
  // known; returns memory that lives until the handle is finished.
  std::function<std::byte*(int64_t elements)> allocate_output;

  // Parts that this rank did not produce in this step (a gradient of an unused parameter): their
  // memory holds the neutral contribution. Empty: all parts are here. One flag per part of the
  // spec.
  std::vector<bool> absent;

  std::unique_ptr<ReadyEvent> ready;  // null: the memory may be read now
  std::shared_ptr<void> keep_alive;   // released when the handle has finished
  std::shared_ptr<HandleState> handle;
};

inline constexpr size_t kNameBytesMax = 4096;
inline constexpr size_t kPartsMax = 65536;

}  // namespace horon::core
