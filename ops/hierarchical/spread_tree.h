// The way of a block from one host to all others: in a chain from host to host, or along a tree in
// which each host has `fan_out` children, as choose_algorithm() says.
#pragma once

namespace horon::ops {

struct SpreadTree {
  int hosts = 1;
  int fan_out = 1;
  int source = 0;  // host

  // `host` is not the source.
  int parent_of(int host) const { return at((position_of(host) - 1) / fan_out); }
  // The children of `host` are child(host, 0), child(host, 1) and so on.
  int children_of(int host) const {
    const int before = position_of(host) * fan_out + 1;
    return before >= hosts ? 0 : hosts - before < fan_out ? hosts - before : fan_out;
  }
  int child(int host, int index) const { return at(position_of(host) * fan_out + 1 + index); }

 private:
  int position_of(int host) const { return (host - source + hosts) % hosts; }
  int at(int position) const { return (source + position) % hosts; }
};

}  // namespace horon::ops
