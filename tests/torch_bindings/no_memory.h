// Ranks that have no memory for a tensor, of which the others must hear.
#pragma once

#include <cstddef>
#include <new>
#include <string>

#include <c10/core/Allocator.h>
#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/session_environment.h"

namespace horon::testing_support {

// Replaces LibTorch's allocator while it lives. It still takes short tensors from that one, and has
// no memory for longer ones.
class NoMemory final : public c10::Allocator {
 public:
  explicit NoMemory(size_t longest = 1000) : longest_(longest) {
    c10::SetAllocator(c10::kCPU, this);
  }
  ~NoMemory() override { c10::SetAllocator(c10::kCPU, libtorch_); }
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes > longest_) throw std::bad_alloc();
    return libtorch_->allocate(bytes);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  const size_t longest_;
  c10::Allocator* const libtorch_ = c10::GetAllocator(c10::kCPU);
};

// Of a call for which rank 0 alone has no memory.
template <class Call>
std::string error_without_memory(const Call& call, size_t longest = 1000) {
  if (rank() != 0) return error_of(call);
  const NoMemory no_memory(longest);
  return error_of(call);
}

inline auto tells_of_rank_0() { return ::testing::HasSubstr(rank() == 0 ? "memory" : "rank 0"); }

}  // namespace horon::testing_support
