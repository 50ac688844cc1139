#include "horon/core/negotiation/filled_hosts.h"

#include "horon/core/negotiation/gate.h"

namespace horon::core {

FilledHosts::FilledHosts(const std::vector<int>& host_of) {
  for (const int host : host_of) {
    const bool is_first = host == static_cast<int>(hosts_);
    host_led_by_.push_back(is_first ? host : -1);
    if (is_first) ++hosts_;
  }
  if (hosts_ > 1) counters_.resize(Gate::kCounters);
}

FilledHosts::Counter& FilledHosts::counter_of(Place place) {
  return counters_[place % Gate::kCounters];
}

bool FilledHosts::fill(int member, Place place) {
  const auto index = static_cast<size_t>(member);
  if (hosts_ < 2 || host_led_by_.at(index) < 0) return false;
  Counter& counter = counter_of(place);
  if (counter.place != place) {
    counter.place = place;
    counter.count = 0;
    counter.filled.assign(hosts_, false);
  }
  const auto host = static_cast<size_t>(host_led_by_[index]);
  if (counter.filled[host]) return false;
  counter.filled[host] = true;
  ++counter.count;
  return true;
}

bool FilledHosts::take_all_filled(Place place) {
  Counter& counter = counter_of(place);
  if (counter.count < hosts_) return false;
  counter.count = 0;
  counter.filled.assign(hosts_, false);
  return true;
}

}  // namespace horon::core
