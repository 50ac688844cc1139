// The way of a block from one host to all others: from host to host in a chain, or along a tree of
// which each host has several children. A pure function of facts that all ranks share.
#pragma once

#include <cstdint>

namespace horon::ops {

// Children of each host. One, a chain: each wire carries the block once, but it passes all hosts
// one after the other. More: it is there after fewer hops, and goes over a wire as many times.
// `chunk_bytes`: what a host has of the block before it sends that on.
int fan_out_of(int hosts, int64_t bytes, int64_t chunk_bytes);

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
