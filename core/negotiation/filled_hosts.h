// Which hosts of a set that spans several have filled which frozen place (PROTOCOL.md, section 12).
// Belongs to the coordinator.
#pragma once

#include <cstddef>
#include <vector>

#include "horon/core/negotiation/protocol.h"

namespace horon::core {

class FilledHosts {
 public:
  // `host_of`: by member, numbered in the order of each host's first member.
  explicit FilledHosts(const std::vector<int>& host_of);

  // The first member of a host says that all members there have filled `place`, which is frozen.
  // False if that can't be: it is no first member, or has said so before.
  bool fill(int member, Place place);
  // True if all hosts have filled it; counting then begins anew.
  bool take_all_filled(Place place);

 private:
  struct Counter {
    Place place = kNoPlace;  // counts for this place: of its counter, only one is frozen at a time
    size_t count = 0;
    std::vector<bool> filled;  // by host
  };
  Counter& counter_of(Place place);

  std::vector<int> host_led_by_;  // by member; -1: another member is its host's first
  size_t hosts_ = 0;
  std::vector<Counter> counters_;
};

}  // namespace horon::core
