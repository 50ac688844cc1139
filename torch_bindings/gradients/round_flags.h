// What the ranks tell each other in every round with the buckets themselves: that it is a plain
// round, in which they need not agree on anything (round_agreement.h).
//
// A rank says each thing by raising a flag. Behind the gradients of a bucket lies one element for
// each flag: 0, or above 0 where this rank has raised it. The reduction adds them up, so that every
// rank sees which flags were raised by any rank. This holds in all dtypes, however the sum is
// rounded and scaled. Where all ranks must say the same, there is a flag for each answer; the ranks
// differ if more than one of them is raised.
//
// Each rank puts its flags into all of its buckets; if it must agree on something that comes up
// late, only its last buckets say so. All reduced buckets together have the flags of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>

#include <c10/core/ScalarType.h>

namespace horon::torch_detail {

class RoundFlags {
 public:
  // Elements of a bucket.
  static constexpr size_t kCount = 37;

  RoundFlags() = default;  // none is raised

  // This rank wants the ranks to agree.
  void ask() { raised_ |= kAsks; }
  // These must be the same on all ranks. Of the fingerprint 16 bits count.
  void say(bool first_round_of_step, bool rounded_otherwise, uint64_t fingerprint);

  // Floating dtypes. `memory`: kCount elements.
  void write(void* memory, at::ScalarType dtype) const;
  // Adds what any rank has raised.
  void add(const void* memory, at::ScalarType dtype);

  // All ranks have said the same, and some rank has said something.
  bool alike() const;
  bool asked() const { return (raised_ & kAsks) != 0; }

 private:
  static constexpr uint64_t kAsks = 1;

  uint64_t raised_ = 0;  // a bit for each flag
};

}  // namespace horon::torch_detail
