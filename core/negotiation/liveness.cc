#include "horon/core/negotiation/liveness.h"

#include <utility>

namespace horon::core {

void Liveness::heard(int peer) {
  const auto asked = asked_.find(peer);
  if (asked == asked_.end() || std::exchange(asked->second.answered, true)) return;
  --unanswered_;
}

bool Liveness::suspect(int peer, Nanos now) {
  if (dead_after_ <= 0) return false;
  const auto [known, fresh] = asked_.try_emplace(peer, Asked{now, now, true});
  Asked& asked = known->second;
  if (!fresh && now - asked.last < ask_every_) return false;
  if (std::exchange(asked.answered, false)) {
    asked.first = now;
    ++unanswered_;
  }
  asked.last = now;
  return true;
}

std::optional<int> Liveness::dead(Nanos now) const {
  if (dead_after_ <= 0 || unanswered_ == 0) return std::nullopt;
  std::optional<int> oldest;
  Nanos first = now - dead_after_;
  for (const auto& [peer, asked] : asked_) {
    if (asked.answered || asked.first > first) continue;
    if (oldest && asked.first == first) continue;
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
