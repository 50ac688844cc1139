// One piece of memory that other processes of this host can map: a memfd, reached as
// /proc/PID/fd/N.
#pragma once

#include <cstddef>
#include <cstdint>
#include <sys/types.h>

namespace horon::core {

// Owns the mapping, and in its creator the descriptor. A first page before data() holds the
// segment's generation, by which whoever opens it sees that it is the right one and not another
// file with the same number.
//
// The memory is shared, so the child of a fork could write into its parent's tensors. Therefore
// the child does not get the mapping: an access there is a SIGSEGV, as with memory of MPI or CUDA,
// and the destructor unmaps nothing.
class SharedSegment {
 public:
  static constexpr size_t kBytesMax = size_t{1} << 46;  // half of what a process can address

  // Zeroed and touched. Throws Error(Limit) when there is no memory for it, and
  // Error(OperationFailed) if it fails for another reason.
  static SharedSegment create(size_t bytes);
  // The segment of another process, touched. Throws Error(OperationFailed).
  static SharedSegment open(pid_t owner, int descriptor, uint64_t generation);

  SharedSegment() = default;
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  std::byte* data() const;  // page aligned; null if empty
  size_t bytes() const { return bytes_; }
  int descriptor() const { return descriptor_; }  // -1 in a process that opened it
  uint64_t generation() const { return generation_; }

  // Creator only. Gives the memory back to the system but keeps address and descriptor. That takes
  // long for much memory. Behind renew_generation(), by which peers learn of it: false if there is
  // none, then the pages stay. restore_pages() takes them anew, zeroed, and throws Error(Limit) if
  // there is no memory.
  bool renew_generation() noexcept;
  void release_pages() noexcept;
  void restore_pages();

 private:
  void reserve() const;
  void map(int descriptor, size_t mapped_bytes);
  void reset() noexcept;

  std::byte* mapping_ = nullptr;
  pid_t mapped_by_ = 0;
  size_t bytes_ = 0;
  int descriptor_ = -1;
  uint64_t generation_ = 0;
};

}  // namespace horon::core
