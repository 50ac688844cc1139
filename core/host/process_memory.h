// Copies between the private memory of two processes of a host, made by the kernel: "cross memory
// attach", process_vm_readv(2). It takes one copy, and the memory needs no preparation.
//
// Not every system allows it (other users, containers with a filter, Yama's ptrace_scope), so ranks
// try it at the start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace horon::core {

// Copy between this process and [address, address + bytes) of another one. Returns 0 or the errno;
// ESRCH: that process has ended. On an error some bytes may have been copied. Any thread.
int read_process(int process_id, std::byte* to, uint64_t address, size_t bytes) noexcept;
int write_process(int process_id, uint64_t address, const std::byte* from, size_t bytes) noexcept;

// Whether the kernel can copy this memory of this process for others. It can't where the pages are
// a device's (what cudaHostAlloc() gives). Looks at both ends. Any thread.
bool is_reachable(const std::byte* data, size_t bytes) noexcept;
// Whether it can copy all of these. One system call for up to 256 of them.
bool are_reachable(std::span<const std::span<const std::byte>> ranges) noexcept;

// Where Yama asks for it (ptrace_scope 1), lets other processes of this user reach this one. A
// process has a single such permission, which can't be read: MPI may have given it too, and need
// it.
void allow_process_copies() noexcept;

// What a rank lays out for the others to try copies with.
class ProcessProbe {
 public:
  explicit ProcessProbe(int ranks);
  ProcessProbe(const ProcessProbe&) = delete;
  ProcessProbe& operator=(const ProcessProbe&) = delete;

  struct Offer {
    uint64_t token = 0;  // random: another process may have this number
    uint64_t token_address = 0;
    uint64_t answers_address = 0;  // a uint64_t for each rank
  };
  Offer offer() const;
  // Copies out of the peer's probe and into it, as `rank`. Returns what is wrong, or "". The peer
  // must keep its probe meanwhile.
  std::string try_copies(int process_id, const Offer& peer, int rank) const;

 private:
  const uint64_t token_;
  std::vector<uint64_t> answers_;
};

}  // namespace horon::core
