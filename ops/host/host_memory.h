// The memory domain of the host. Scratch memory is shared with the ranks of this host where that is
// possible. Copies are finished when copy() returns.
#pragma once

#include "horon/core/execution/memory_domain.h"
#include "horon/core/host/local_group.h"

namespace horon::ops {

class HostMemory final : public core::MemoryDomain {
 public:
  // Without a `group` memory is private. The group must outlive the domain, but not the memory.
  explicit HostMemory(core::LocalGroup* group) : group_(group) {}

  DeviceKind device() const override { return DeviceKind::Host; }
  // 64-byte aligned, not initialized. Throws Error(Limit) if there is no memory.
  std::shared_ptr<std::byte> allocate(size_t bytes) override;
  std::unique_ptr<core::PendingCopy> copy(std::span<const core::CopyItem> items) override;

 private:
  core::LocalGroup* group_;
};

}  // namespace horon::ops
