// How the calls of a program repeat: those of one training step come again in the next.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace horon::python::process_group {

class CallCycle {
 public:
  // `likeness`: the same for calls that are alike (PendingCollective::likeness()).
  void note(uint64_t likeness) { latest_.at(count_++ % latest_.size()) = likeness; }
  // After how many calls the same ones have come again, so often that it can be expected of the
  // next ones; 0 if they have not. The least such number.
  size_t length() const;
  // Whether that is so of this number, which need not be the least one.
  bool repeats_after(size_t calls) const;

  static constexpr size_t kLongest = 512;
  static constexpr size_t kLeastRepeated = 64;  // calls; of a longer cycle all

 private:
  // Of the call that was so many calls before the latest.
  uint64_t back(size_t calls) const { return latest_.at((count_ - 1 - calls) % latest_.size()); }

  std::array<uint64_t, 2 * kLongest> latest_{};
  uint64_t count_ = 0;
};

}  // namespace horon::python::process_group
