// The submissions of one process set that have not finished, by ticket. Places are used again, so a
// submission costs no memory of its own once as many have been under way before.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/negotiation/effects.h"
#include "horon/core/runtime/submission.h"

namespace horon::core {

struct LiveSubmission {
  Submission submission;
  std::vector<bool> produced;                      // as in Outcome, once it is started
  int contributors = 0;                            // the same
  bool started = false;                            // the executor has its memory
  uint64_t bytes = 0;                              // of its tensors, once it is started
  std::chrono::steady_clock::time_point taken_at;  // only while a timeline is written
};

class LiveSubmissions {
 public:
  // An empty one; its address stays until it is erased. May throw for want of memory, and then
  // nothing has changed.
  Ticket add() {
    if (free_.empty()) {
      free_.reserve(places_.size() + 1);  // so that erase() needs no memory
      places_.emplace_back();
      free_.push_back(places_.size() - 1);
    }
    const size_t index = free_.back();
    free_.pop_back();
    Place& place = places_[index];
    place.used = true;
    ++count_;
    return place.generation << kIndexBits | index;
  }

  LiveSubmission& at(Ticket ticket) { return place_of(ticket).live; }

  void erase(Ticket ticket) noexcept {
    Place& place = place_of(ticket);
    place.live = {};
    place.used = false;
    ++place.generation;
    --count_;
    free_.push_back(ticket & kIndexMask);
  }

  bool empty() const { return count_ == 0; }
  // Any one of them.
  Ticket any() const {
    size_t index = 0;
    while (!places_.at(index).used) ++index;
    return places_[index].generation << kIndexBits | index;
  }

 private:
  struct Place {
    LiveSubmission live;
    bool used = false;
    uint64_t generation = 0;  // submissions that have finished here
  };
  static constexpr int kIndexBits = 32;
  static constexpr uint64_t kIndexMask = (uint64_t{1} << kIndexBits) - 1;

  Place& place_of(Ticket ticket) {
    const size_t index = ticket & kIndexMask;
    HORON_CHECK(index < places_.size() && places_[index].used &&
                    places_[index].generation == ticket >> kIndexBits,
                "a submission finished twice");
    return places_[index];
  }

  std::deque<Place> places_;
  std::vector<size_t> free_;
  size_t count_ = 0;
};

}  // namespace horon::core
