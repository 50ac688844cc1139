// One kind of memory (host, a GPU): scratch, copies, and the two asynchronous edges of a
// collective.
//
// Nothing here waits. A domain may run copies on a stream: then `copied` tells when they have
// happened, and an op is started only after that. The host domain copies at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "horon/core/base/entry_spec.h"

namespace horon::core {

// "The producer has finished writing this tensor." Recorded by the submitter, polled by the runtime
// thread.
class ReadyEvent {
 public:
  virtual ~ReadyEvent() = default;
  virtual bool ready() = 0;  // throws horon::Error if the device failed
};

// Work handed to the domain by copy().
class PendingCopy {
 public:
  virtual ~PendingCopy() = default;
  virtual bool done() = 0;  // throws horon::Error if the device failed
};

struct CopyItem {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t bytes = 0;  // of `from`
  // Narrow: float32 to this type of 16 bits; Widen: back. Each value is multiplied by `factor` in
  // float32.
  enum class Cast : uint8_t { None, Narrow, Widen };
  Cast cast = Cast::None;
  Compression type = Compression::None;
  double factor = 1.0;  // with a cast only
};

class MemoryDomain {
 public:
  virtual ~MemoryDomain() = default;
  virtual DeviceKind device() const = 0;
  // Scratch that the ops of this device can use best (shared memory, registered memory). Never null
  // for bytes > 0.
  virtual std::shared_ptr<std::byte> allocate(size_t bytes) = 0;
  // Copies all items in one go; null means that it has already happened.
  virtual std::unique_ptr<PendingCopy> copy(std::span<const CopyItem> items) = 0;
};

}  // namespace horon::core
