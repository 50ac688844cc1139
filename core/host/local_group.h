// The ranks of one host: a control area that all of them map, doorbells, and memory that every one
// of them can reach.
//
// Memory is made with memfd_create and reached by the peers as /proc/PID/fd/N. Where that is
// forbidden (each rank in a container of its own), it lies in files in /dev/shm; where the ranks
// don't share those either (other users, other PID namespaces), `available()` is false on all ranks
// of the host and everything goes through MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "horon/core/bootstrap/bootstrap.h"
#include "horon/core/host/doorbell.h"
#include "horon/core/host/shared_segment.h"

namespace horon::core {

// Where a piece of shareable memory lies: valid in every process of the host.
struct SharedAddress {
  uint64_t segment = 0;  // file descriptor number in its owner
  uint64_t generation =
      0;                // unique for each segment; distinguishes segments that reused a descriptor
  uint64_t offset = 0;  // bytes
};

class LocalGroup {
 public:
  enum class ProcessCopies : bool { Off, IfAllowed };
  // Collective over the ranks of this host; `bootstrap` is used during the call only. Every rank
  // gives the same area_bytes, the size of one zeroed block that all ranks of the host share. Opens
  // and reads a segment of every peer before it says that the group is available. Throws
  // Error(Config) if the sizes differ. `copies`, the same on all ranks: whether to try copies
  // between private memories too. Where Yama's ptrace_scope is 1, that lets other processes of this
  // user reach this one (prctl(PR_SET_PTRACER)).
  static std::unique_ptr<LocalGroup> create(const Bootstrap& bootstrap, size_t area_bytes,
                                            ProcessCopies copies = ProcessCopies::IfAllowed);
  // A group that is not available, by choice (HORON_SHARED_MEMORY=0). Not collective.
  static std::unique_ptr<LocalGroup> create_unavailable(int local_rank, int local_size,
                                                        std::string reason);
  virtual ~LocalGroup() = default;

  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  // False if the ranks of this host can't map each other's memory; the same answer on all of them,
  // with the reason.
  virtual bool available() const = 0;
  virtual std::string unavailable_reason() const = 0;
  // How the ranks reach each other's memory; the same on all of them. Only if available.
  virtual Reach reach() const = 0;

  // This rank's own doorbell always exists (private if not available()); the others' only if
  // available().
  virtual Doorbell& doorbell(int local_rank) = 0;
  // Does nothing if not available.
  void ring_all_others() noexcept;
  // 64-byte aligned; null if not available.
  virtual std::byte* area() = 0;

  // Memory of this rank that every local rank can reach, 64-byte aligned, zeroed and already
  // touched. Segments that are given back are reused, so peers keep few mappings. May outlive the
  // group. If the group is not available it is plain memory. Any thread. Throws Error(Limit) when
  // the machine has no memory.
  virtual std::shared_ptr<std::byte> allocate(size_t bytes) = 0;
  // As allocate(), but a reused segment keeps its contents: for scratch that is written before it
  // is read.
  virtual std::shared_ptr<std::byte> allocate_scratch(size_t bytes) = 0;
  // As allocate_scratch(), for blocks that are asked for again and again, and may be many. Null if
  // SharedHeap::kReusedSegmentsMax segments have been made for such blocks and none is free.
  virtual std::shared_ptr<std::byte> allocate_reused(size_t bytes) = 0;
  // Where [data, data + bytes) lies, if it is in one piece of allocate()d memory of this rank. Any
  // thread.
  virtual std::optional<SharedAddress> locate(const std::byte* data, size_t bytes) const = 0;
  // A peer's memory in this process; mapped on first use and kept. What the peer has given back may
  // be gone, or be used for something else. Only for the holder of the seat. Throws
  // Error(PeerDead), which names the rank, if its process has ended; Error(OperationFailed) or
  // Error(Limit) if mapping fails for another reason.
  virtual std::byte* map(int local_rank, const SharedAddress& address) = 0;

  // Whether ranks can copy between each other's private memory (process_memory.h); the same answer
  // on all of them, with the reason.
  virtual bool copies_between_processes() const = 0;
  virtual std::string no_copies_reason() const = 0;
  // Copy from and to memory at this address in a peer's process, which must be is_reachable()
  // there. Only if copies_between_processes(). Throw as map(). Only for the holder of the seat.
  virtual void read(int local_rank, std::byte* to, uint64_t address, size_t bytes) = 0;
  virtual void write(int local_rank, uint64_t address, const std::byte* from, size_t bytes) = 0;

  // The local ranks whose processes have ended (by pidfd). One system call. For the holder of the
  // seat.
  virtual std::vector<int> dead_local_ranks() = 0;
  // 0 if the group is not available.
  virtual int process_id(int local_rank) const = 0;
};

// How errors name a rank of this host: "rank 3 (pid 4711 on host node7)".
std::string name_of_process(int rank, int process_id);

}  // namespace horon::core
