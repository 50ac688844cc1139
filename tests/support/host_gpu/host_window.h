// The memory of HostNccl, and the window that the members of a communicator register.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "horon/ops/nccl/nccl_api.h"

namespace horon::test {

// A fault that a test plants in the windows of one rank. Horon does not know of it.
enum class WindowFault : uint8_t {
  None,
  NoMemory,   // allocate() has none
  NoWindow,   // the devices can't have one
  Fails,      // the call fails, and with it the communicator
  FailsLast,  // the same, when the other members have their windows
  Hangs,      // the call never ends
};

// The memory of one rank, for all its communicators. What is freed stays mapped, and any access to
// it ends the process, as on a device. Any thread may call.
class HostWindowMemory {
 public:
  HostWindowMemory() = default;
  ~HostWindowMemory();
  HostWindowMemory(const HostWindowMemory&) = delete;
  HostWindowMemory& operator=(const HostWindowMemory&) = delete;

  std::byte* allocate(size_t bytes);
  void free(std::byte* memory);
  void note_registered(std::byte* memory, size_t bytes);
  void note_deregistered(std::byte* memory);
  void note_collective_in_window() { ++collectives_in_windows_; }

  // What Horon has done wrong, as texts.
  void complain(const std::string& what);
  std::vector<std::string> complaints() const;
  int live() const;        // allocated and not freed
  int registered() const;  // of these
  int collectives_in_windows() const { return collectives_in_windows_; }

 private:
  struct Block {
    size_t bytes = 0;
    bool registered = false;
    bool freed = false;
  };
  mutable std::mutex mutex_;
  std::map<std::byte*, Block> blocks_;
  std::vector<std::string> complaints_;
  std::atomic<int> collectives_in_windows_{0};
};

// Where the members of a communicator meet, in memory that they share; zero at first.
struct WindowMeeting {
  std::atomic<uint64_t> bytes{0};  // of the window that is registered first
  std::atomic<uint64_t> calls{0};  // one more than the rank that registers first has made
  std::atomic<int> here{0};
  std::atomic<bool> lost{false};         // a member has left
  std::atomic<uint64_t> places[4] = {};  // where the data of a collective lies: see agrees()
};

// The window of one communicator on one rank, which has one window at most.
class HostWindow {
 public:
  HostWindow(HostWindowMemory& memory, WindowMeeting& meeting, int size)
      : memory_(memory), meeting_(meeting), size_(size) {}
  ~HostWindow();
  HostWindow(const HostWindow&) = delete;
  HostWindow& operator=(const HostWindow&) = delete;

  // `calls`: the number of calls that this rank has made on the communicator.
  void begin(std::byte* memory, size_t bytes, ops::NcclWindowHandle* handle, uint64_t calls,
             WindowFault fault);
  // Throws Error where a member has failed.
  bool is_registered();
  void deregister(ops::NcclWindowHandle handle);
  void leave() { meeting_.lost = true; }  // the others need not wait for it
  bool is_there() const { return there_; }

  // Checks the n-th collective. False: the members' data does not lie at the same place of the
  // window.
  bool agrees(uint64_t number, const std::byte* data);

 private:
  HostWindowMemory& memory_;
  WindowMeeting& meeting_;
  const int size_;
  std::byte* begin_ = nullptr;
  size_t bytes_ = 0;
  ops::NcclWindowHandle* handle_ = nullptr;  // being registered
  WindowFault fault_ = WindowFault::None;
  std::atomic<bool> there_{false};
};

}  // namespace horon::test
