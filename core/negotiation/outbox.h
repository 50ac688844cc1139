// What one member has to send, until it is packed: one envelope for each receiver.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "horon/core/negotiation/effects.h"
#include "horon/core/negotiation/protocol.h"

namespace horon::core {

class Outbox {
 public:
  // For member `me`. `host_of`: by member, numbered in the order of each host's first member.
  Outbox(int me, const std::vector<int>& host_of);

  // Adds an item for every other member. These keep their order.
  void to_all(Item item) { to_all_.push_back(std::move(item)); }
  // Adds an item for the first member of every other host, in one order with the items for all.
  void to_hosts(const RingItem& item);
  // Adds an item for one member, outside of that order.
  void to_one(int peer, Item item) { to_one_.emplace_back(peer, std::move(item)); }

  // Takes out everything. The items of an envelope keep their order. Envelopes that are the same
  // for many members are encoded once, and their messages share the bytes.
  void pack(uint32_t set, uint64_t applied, std::vector<Outgoing>& messages);

 private:
  std::vector<std::byte> encode_for(size_t peer, const Envelope& envelope) const;
  void send_to_all(Envelope& envelope, std::vector<Outgoing>& messages);

  const int me_;
  std::vector<bool> first_of_host_;  // by member
  std::vector<Item> to_all_;         // with those for the hosts
  bool any_for_hosts_ = false;
  std::vector<std::pair<int, Item>> to_one_;
};

}  // namespace horon::core
