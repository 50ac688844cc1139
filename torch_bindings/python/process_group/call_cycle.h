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
  // The period of the calls: the least number after which the same calls have come again, so often
  // that the next ones can be expected to; 0 if there is none.
  size_t length() const;
  // Whether the calls repeat after this number, which need not be the least one.
  bool repeats_after(size_t calls) const;

  static constexpr size_t kLongest = 512;
  static constexpr size_t kLeastRepeated = 64;  // calls that have repeated; of a longer cycle all

 private:
  // Of the call that was so many calls before the latest.
  uint64_t back(size_t calls) const { return latest_.at((count_ - 1 - calls) % latest_.size()); }

  std::array<uint64_t, 2 * kLongest> latest_{};
  uint64_t count_ = 0;
};

}  // namespace horon::python::process_group
