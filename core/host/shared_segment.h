// One piece of memory that other processes of this host can map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <sys/types.h>

namespace horon::core {

// How another process finds a segment.
enum class Reach : bool {
  // A memfd, opened as /proc/PID/fd/N of its creator: no name outlives a crash, and the size of
  // /dev/shm is no limit. The kernel admits processes that may look into the creator.
  ByProcess,
  // A file in /dev/shm (named_file.h). For processes of one user that may not look into each other:
  // those in containers of their own, each with its own user namespace.
  ByName,
};

// Owns the mapping, and in its creator the descriptor. A first page before data() holds the
// segment's generation, by which a process that opens it sees that it is the right segment and not
// another file with the same number.
//
// The memory is shared, so the child of a fork could write into its parent's tensors. Therefore
// the child does not get the mapping: an access there is a SIGSEGV, as with memory of MPI or CUDA,
// and the destructor unmaps nothing.
class SharedSegment {
 public:
  static constexpr size_t kBytesMax = size_t{1} << 46;  // half of what a process can address

  // Zeroed and touched. Throws Error(Limit) when there is no memory for it, and
  // Error(OperationFailed) if it fails for another reason.
  static SharedSegment create(size_t bytes, Reach reach = Reach::ByProcess);
  // The segment of another process, touched. Throws Error(OperationFailed), or Error(Limit) if this
  // process has too many open files or no room for the mapping.
  static SharedSegment open(Reach reach, pid_t owner, int descriptor, uint64_t generation);

  SharedSegment() = default;
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  std::byte* data() const;  // page aligned; null if empty
  size_t bytes() const { return bytes_; }
  int descriptor() const { return descriptor_; }  // -1 in a process that opened it
  uint64_t generation() const { return generation_; }

  // Creator only. release_pages() gives the memory back to the system but keeps address and
  // descriptor; that takes long for much memory. Call renew_generation() before, by which peers
  // learn of it; if it returns false (no random number), keep the pages. restore_pages() takes them
  // anew, zeroed, and throws Error(Limit) if there is no memory.
  bool renew_generation() noexcept;
  void release_pages() noexcept;
  void restore_pages();

 private:
  void reserve() const;
  void map(int descriptor, size_t mapped_bytes);
  void set_generation(uint64_t generation) noexcept;
  void reset() noexcept;

  std::byte* mapping_ = nullptr;
  pid_t process_ = 0;  // the one that created or opened it
  Reach reach_ = Reach::ByProcess;
  size_t bytes_ = 0;
  int descriptor_ = -1;
  uint64_t generation_ = 0;
};

}  // namespace horon::core
