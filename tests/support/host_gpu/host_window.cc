#include "horon/tests/support/host_gpu/host_window.h"

#include <algorithm>
#include <sys/mman.h>

#include "horon/core/base/error.h"
#include "horon/core/base/round_up.h"

namespace horon::test {

HostWindowMemory::~HostWindowMemory() {
  for (const auto& [memory, block] : blocks_) ::munmap(memory, block.bytes);
}

std::byte* HostWindowMemory::allocate(size_t bytes) {
  constexpr size_t kPage = 2 << 20;
  const size_t whole = core::round_up(bytes, kPage);
  void* const memory =
      ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  HORON_CHECK(memory != MAP_FAILED, "memory for a window");
  const std::lock_guard lock(mutex_);
  blocks_[static_cast<std::byte*>(memory)] = {.bytes = whole};
  return static_cast<std::byte*>(memory);
}

void HostWindowMemory::free(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(memory);
  if (found == blocks_.end() || found->second.freed) {
    complaints_.emplace_back("memory is freed that allocate() has not given");
    return;
  }
  if (found->second.registered) complaints_.emplace_back("memory of a window is freed");
  found->second.freed = true;
  ::mprotect(memory, found->second.bytes, PROT_NONE);
}

void HostWindowMemory::note_registered(std::byte* memory, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(memory);
  if (found == blocks_.end() || found->second.freed || bytes > found->second.bytes) {
    complaints_.emplace_back("memory is registered that allocate() has not given");
    return;
  }
  if (found->second.registered) complaints_.emplace_back("memory is registered twice");
  found->second.registered = true;
}

void HostWindowMemory::note_deregistered(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  if (const auto found = blocks_.find(memory); found != blocks_.end()) {
    found->second.registered = false;
  }
}

void HostWindowMemory::complain(const std::string& what) {
  const std::lock_guard lock(mutex_);
  complaints_.push_back(what);
}

std::vector<std::string> HostWindowMemory::complaints() const {
  const std::lock_guard lock(mutex_);
  return complaints_;
}

int HostWindowMemory::live() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::count_if(blocks_.begin(), blocks_.end(),
                                        [](const auto& block) { return !block.second.freed; }));
}

int HostWindowMemory::registered() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(std::count_if(blocks_.begin(), blocks_.end(),
                                        [](const auto& block) { return block.second.registered; }));
}

HostWindow::~HostWindow() {
  if (there_) memory_.note_deregistered(begin_);
}

void HostWindow::begin(std::byte* memory, size_t bytes, ops::NcclWindowHandle* handle,
                       uint64_t calls, WindowFault fault) {
  if (begin_ != nullptr) memory_.complain("a communicator gets a second window");
  begin_ = memory;
  bytes_ = bytes;
  handle_ = handle;
  fault_ = fault;
  if (fault == WindowFault::Fails || fault == WindowFault::Hangs) return;
  memory_.note_registered(memory, bytes);
  there_ = true;
  const auto is_as_the_first = [](std::atomic<uint64_t>& first, uint64_t mine) {
    uint64_t expected = 0;
    return first.compare_exchange_strong(expected, mine) || expected == mine;
  };
  if (!is_as_the_first(meeting_.bytes, bytes)) {
    memory_.complain("the members register windows of unlike size");
  }
  if (!is_as_the_first(meeting_.calls, calls + 1)) {
    memory_.complain("the members register windows at unlike points of their calls");
  }
  ++meeting_.here;
}

bool HostWindow::is_registered() {
  if (handle_ == nullptr) return true;
  if (fault_ == WindowFault::Fails) {
    throw Error(ErrorCode::OperationFailed, "the window of this rank fails");
  }
  if (fault_ == WindowFault::Hangs) return false;
  if (meeting_.here < size_) {
    if (!meeting_.lost) return false;
    throw Error(ErrorCode::OperationFailed, "a member has left while the window was made");
  }
  if (fault_ == WindowFault::FailsLast) {
    throw Error(ErrorCode::OperationFailed, "the window of this rank fails");
  }
  if (fault_ == WindowFault::NoWindow) {
    there_ = false;
    memory_.note_deregistered(begin_);
  } else {
    *handle_ = this;
  }
  handle_ = nullptr;
  return true;
}

void HostWindow::deregister(ops::NcclWindowHandle handle) {
  if (handle != this || !there_) memory_.complain("no window is deregistered");
  there_ = false;
  memory_.note_deregistered(begin_);
}

// No member is more than one collective ahead, so there are enough places.
bool HostWindow::agrees(uint64_t number, const std::byte* data) {
  const bool inside = there_ && data >= begin_ && data < begin_ + bytes_;
  if (inside) memory_.note_collective_in_window();
  const uint64_t place = inside ? 1 + static_cast<uint64_t>(data - begin_) : 0;
  const uint64_t mine = (number + 1) << 40U | place;
  std::atomic<uint64_t>& slot = meeting_.places[number % 4];
  uint64_t seen = slot;
  while (seen >> 40U != number + 1) {
    if (slot.compare_exchange_weak(seen, mine)) return true;
  }
  if (seen == mine) return true;
  memory_.complain("the members' data does not lie at the same place of the window");
  return false;
}

}  // namespace horon::test
