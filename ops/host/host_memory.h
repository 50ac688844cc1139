// The memory domain of the host. Scratch memory is shared with the ranks of this host where that is
// possible. Its queue is the calling thread: copies have happened when copy() returns.
#pragma once

#include "horon/core/execution/memory_domain.h"
#include "horon/core/host/local_group.h"

namespace horon::ops {

class HostQueue final : public core::MemoryQueue {
 public:
  bool immediate() const override { return true; }
  bool wait_for(core::Event&) override { return false; }
  void copy(std::span<const core::CopyItem> items) override;
  std::shared_ptr<core::Event> record() override { return nullptr; }
};

class HostMemory final : public core::MemoryDomain {
 public:
  // Without a `group` memory is private. The group must outlive the domain, but not the memory.
  explicit HostMemory(core::LocalGroup* group) : group_(group) {}

  DeviceKind device() const override { return DeviceKind::Host; }
  // 64-byte aligned, not initialized. Throws Error(Limit) if there is no memory.
  std::shared_ptr<std::byte> allocate(size_t bytes) override;
  core::MemoryQueue& queue() override { return queue_; }

 private:
  core::LocalGroup* group_;
  HostQueue queue_;
};

}  // namespace horon::ops
