// The submissions of one process set that have not finished, by ticket. Cells are reused: add()
// allocates only when more submissions are under way than ever before.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/live_ranges.h"
#include "horon/core/negotiation/effects.h"
#include "horon/core/runtime/submission.h"

namespace horon::core {

struct LiveSubmission {
  Submission submission;
  std::vector<bool> produced;                      // as in Outcome, once it is started
  int contributors = 0;                            // the same
  bool started = false;                            // the executor has its memory
  uint64_t bytes = 0;                              // of its tensors, once it is started
  std::chrono::steady_clock::time_point taken_at;  // only while a timeline records
  LiveRange negotiation;                           // for a profiler, until it is started
};

class LiveSubmissions {
 public:
  // `first_generation`: with which every cell begins.
  explicit LiveSubmissions(uint32_t first_generation = 0) : first_generation_(first_generation) {}

  // Adds an empty submission, whose address stays until it is erased. Throws std::bad_alloc, and
  // then nothing has changed.
  Ticket add() {
    if (free_.empty()) {
      // So that erase() needs no memory. Doubled: reserve() takes no more than it is asked for.
      const size_t wanted = cells_.size() + 1;
      if (free_.capacity() < wanted) free_.reserve(2 * wanted);
      cells_.emplace_back().generation = first_generation_;
      free_.push_back(cells_.size() - 1);
    }
    const size_t index = free_.back();
    free_.pop_back();
    first_ = std::min(first_, index);
    Cell& cell = cells_[index];
    cell.used = true;
    ++count_;
    return ticket_of(index);
  }

  LiveSubmission& at(Ticket ticket) { return cell_of(ticket).live; }

  void erase(Ticket ticket) noexcept {
    Cell& cell = cell_of(ticket);
    cell.live = {};
    cell.used = false;
    ++cell.generation;
    --count_;
    free_.push_back(ticket & kIndexMask);
  }

  bool empty() const { return count_ == 0; }
  // Any one of them.
  Ticket any() {
    while (!cells_.at(first_).used) ++first_;
    return ticket_of(first_);
  }

 private:
  struct Cell {
    LiveSubmission live;
    bool used = false;
    // How many submissions have finished here. It wraps: a loop of blocking calls uses a single
    // cell.
    uint32_t generation = 0;
  };
  static constexpr int kIndexBits = 32;
  static constexpr uint64_t kIndexMask = (uint64_t{1} << kIndexBits) - 1;

  Ticket ticket_of(size_t index) const {
    return Ticket{cells_[index].generation} << kIndexBits | index;
  }
  Cell& cell_of(Ticket ticket) {
    const size_t index = ticket & kIndexMask;
    HORON_CHECK(index < cells_.size() && cells_[index].used &&
                    cells_[index].generation == ticket >> kIndexBits,
                "a submission finished twice");
    return cells_[index];
  }

  const uint32_t first_generation_;
  std::deque<Cell> cells_;
  std::vector<size_t> free_;
  size_t count_ = 0;
  size_t first_ = 0;  // no cell before this one is used
};

}  // namespace horon::core
