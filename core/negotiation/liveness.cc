#include "horon/core/negotiation/liveness.h"

namespace horon::core {

bool Liveness::suspect(int peer, Nanos now) {
  const auto [asked, fresh] = asked_.try_emplace(peer, Asked{now, now});
  if (fresh) return true;
  if (now - asked->second.last < ask_every_) return false;
  asked->second.last = now;
  return true;
}

std::optional<int> Liveness::dead(Nanos now) const {
  if (dead_after_ <= 0) return std::nullopt;
  std::optional<int> oldest;
  Nanos first = now - dead_after_;
  for (const auto& [peer, asked] : asked_) {
    if (asked.first > first) continue;
    first = asked.first;
    oldest = peer;
  }
  return oldest;
}

void Liveness::forgive(Nanos gap) {
  for (auto& [peer, asked] : asked_) {
    asked.first += gap;
    asked.last += gap;
  }
}

}  // namespace horon::core
