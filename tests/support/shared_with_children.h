// A value in memory that forked children share with the test.
#pragma once

#include <new>
#include <sys/mman.h>

namespace horon {

template <class T>
class SharedWithChildren {
 public:
  SharedWithChildren()
      : memory_(
            mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)),
        value_(memory_ == MAP_FAILED ? throw std::bad_alloc() : new (memory_) T()) {}
  ~SharedWithChildren() { munmap(memory_, sizeof(T)); }
  SharedWithChildren(const SharedWithChildren&) = delete;
  SharedWithChildren& operator=(const SharedWithChildren&) = delete;

  T* operator->() const { return value_; }

 private:
  void* const memory_;
  T* const value_;
};

}  // namespace horon
