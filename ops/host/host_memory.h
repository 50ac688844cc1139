// Host memory: scratch that the ranks of this host can reach where that is possible, and copies
// that happen at once.
#pragma once

#include "horon/core/execution/memory_domain.h"
#include "horon/core/host/local_group.h"

namespace horon::ops {

class HostMemory final : public core::MemoryDomain {
 public:
  // `group` may be null: plain memory then. It must outlive the domain, not the memory.
  explicit HostMemory(core::LocalGroup* group) : group_(group) {}

  DeviceKind device() const override { return DeviceKind::Host; }
  // 64-byte aligned, contents unspecified. Throws Error(Limit) if there is no memory.
  std::shared_ptr<std::byte> allocate(size_t bytes) override;
  std::unique_ptr<core::PendingCopy> copy(std::span<const core::CopyItem> items) override;

 private:
  core::LocalGroup* group_;
};

}  // namespace horon::ops
