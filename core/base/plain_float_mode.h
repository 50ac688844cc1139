// How this thread rounds, and what it does with subnormal numbers.
#pragma once

#include <cfenv>
#include <cstdint>

namespace horon::core {

// While one lives, the thread computes as a new thread does: rounding to nearest, subnormal numbers
// as they are. Collectives run on threads of the program, which may have chosen another mode
// (flush-to-zero is common), and their results must have the same bits on all ranks.
class PlainFloatMode {
 public:
  PlainFloatMode() noexcept { enter(); }
  ~PlainFloatMode() { leave(); }
  PlainFloatMode(const PlainFloatMode&) = delete;
  PlainFloatMode& operator=(const PlainFloatMode&) = delete;

 private:
  // Defined in plain_float_mode_x86.cc, _aarch64.cc or _generic.cc; the build picks one.
  void enter() noexcept;
  void leave() noexcept;

  union Mode {
    uint64_t control;   // x86, ARM: the control word of the vector units
    std::fenv_t whole;  // elsewhere
  };
  Mode before_;
};

}  // namespace horon::core
