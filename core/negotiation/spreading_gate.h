// The coordinator's gate if its set spans several hosts. What it appends to the ring of its own
// host also goes to the first members of the other hosts, which append it to theirs. So all rings
// hold the same Go and markers in the same order.
#pragma once

#include <optional>

#include "horon/core/negotiation/gate.h"
#include "horon/core/negotiation/outbox.h"

namespace horon::core {

class SpreadingGate final : public Gate {
 public:
  // Both outlive it.
  SpreadingGate(Gate& own, Outbox& outbox) : own_(own), outbox_(outbox) {}

  bool fill(Place place) override { return own_.fill(place); }
  void append_go(Place place, bool more) override {
    own_.append_go(place, more);
    outbox_.to_hosts({RingItem::Kind::Go, place, more});
  }
  void append_marker(uint64_t position) override {
    own_.append_marker(position);
    outbox_.to_hosts({RingItem::Kind::Marker, position});
  }
  void append_filled(Place place) override { own_.append_filled(place); }
  void wake() override { own_.wake(); }
  bool room() const override { return own_.room(); }
  std::optional<RingItem> next(uint64_t applied) override { return own_.next(applied); }

 private:
  Gate& own_;
  Outbox& outbox_;
};

}  // namespace horon::core
