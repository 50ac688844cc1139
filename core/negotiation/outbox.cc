#include "horon/core/negotiation/outbox.h"

#include <algorithm>
#include <cstddef>

#include "horon/core/negotiation/told_extents.h"
#include "horon/core/negotiation/wire_format.h"

namespace horon::core {

Outbox::Outbox(int me, const std::vector<int>& host_of) : me_(me) {
  int hosts = 0;
  for (const int host : host_of) {
    first_of_host_.push_back(host == hosts);
    if (host == hosts) ++hosts;
  }
}

void Outbox::to_hosts(const RingItem& item) {
  to_all_.emplace_back(item);
  any_for_hosts_ = true;
}

void Outbox::pack(uint32_t set, uint64_t applied, std::vector<Outgoing>& messages) {
  Envelope envelope;
  envelope.set = set;
  envelope.applied = applied;
  if (!to_all_.empty()) send_to_all(envelope, messages);
  if (to_one_.empty()) return;
  std::stable_sort(to_one_.begin(), to_one_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto item = to_one_.begin(); item != to_one_.end();) {
    const int peer = item->first;
    envelope.items.clear();
    for (; item != to_one_.end() && item->first == peer; ++item) {
      envelope.items.push_back(std::move(item->second));
    }
    messages.push_back({peer, encode(envelope)});
  }
  to_one_.clear();
}

// For envelopes with records of which each member is told only its own part.
std::vector<std::byte> Outbox::encode_for(size_t peer, const Envelope& envelope) const {
  Envelope told;
  told.set = envelope.set;
  told.applied = envelope.applied;
  for (const Item& item : envelope.items) {
    told.items.push_back(differs_by_member(item) ? told_to(item, peer) : item);
  }
  return encode(told);
}

void Outbox::send_to_all(Envelope& envelope, std::vector<Outgoing>& messages) {
  const auto send = [&](const std::vector<bool>& first, bool to_firsts) {
    const bool differs =
        std::any_of(envelope.items.begin(), envelope.items.end(), differs_by_member);
    const SharedBytes same = differs ? SharedBytes() : encode(envelope);
    for (size_t peer = 0; peer < first.size(); ++peer) {
      if (static_cast<int>(peer) == me_ || first[peer] != to_firsts) continue;
      messages.push_back({static_cast<int>(peer), differs ? encode_for(peer, envelope) : same});
    }
  };
  envelope.items = std::exchange(to_all_, {});
  if (!std::exchange(any_for_hosts_, false)) {
    const std::vector<bool> nobody(first_of_host_.size(), false);
    return send(nobody, false);
  }
  send(first_of_host_, true);
  std::erase_if(envelope.items,
                [](const Item& item) { return std::holds_alternative<RingItem>(item); });
  if (!envelope.items.empty()) send(first_of_host_, false);
}

}  // namespace horon::core
