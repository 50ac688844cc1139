#include "horon/tests/support/simulation/simulated_gate.h"

#include <optional>

#include "horon/core/base/text.h"

namespace horon::simulation {

using core::concat;

class SimulatedGates::OneGate : public core::Gate {
 public:
  OneGate(SimulatedGates& all, std::byte* memory, int rank, int size)
      : all_(all), rank_(rank), ring_(memory, rank, size, [] {}) {}

  bool fill(core::Place place) override {
    const bool last = ring_.fill(place);
    seen += concat("f", place, last ? "!" : "");
    all_.note_(concat(rank_, ": fills place ", place, last ? ", the last one" : ""));
    return last;
  }
  void append_go(core::Place place, bool more) override {
    owed.push_back({place, more});
    all_.owing_.push_back(rank_);
  }
  void append_marker(uint64_t position) override {
    ring_.append_marker(position);
    all_.ring_ += concat("m", position, ",");
    all_.note_(concat("ring: log up to ", position));
  }
  bool room() const override { return ring_.room(); }
  std::optional<core::GateEntry> next() override {
    const std::optional<core::GateEntry> entry = ring_.next();
    if (entry) {
      const bool go = entry->kind == core::GateEntry::Kind::Go;
      seen += concat(go ? "g" : "m", entry->value, entry->more ? "+" : "");
    }
    return entry;
  }
  void append_owed() {
    const auto [place, more] = owed.front();
    owed.pop_front();
    ring_.append_go(place, more);
    all_.ring_ += concat("g", place, more ? "+," : ",");
    all_.note_(concat("ring: Go ", place, more ? " and more" : ""));
  }

  struct Owed {
    core::Place place;
    bool more;
  };
  std::deque<Owed> owed;
  std::string seen;

 private:
  SimulatedGates& all_;
  const int rank_;
  core::RingGate ring_;
};

SimulatedGates::SimulatedGates(int size, std::function<void(const std::string& line)> note)
    : memory_(core::RingGate::bytes(size) + 64), note_(std::move(note)) {
  void* area = memory_.data();
  size_t space = memory_.size();
  auto* const aligned =
      static_cast<std::byte*>(std::align(64, core::RingGate::bytes(size), area, space));
  for (int rank = 0; rank < size; ++rank) {
    gates_.push_back(std::make_unique<OneGate>(*this, aligned, rank, size));
  }
}

SimulatedGates::~SimulatedGates() = default;

core::Gate* SimulatedGates::of(int rank) { return gates_.at(static_cast<size_t>(rank)).get(); }

bool SimulatedGates::owes_go(int rank) const {
  return !gates_.at(static_cast<size_t>(rank))->owed.empty();
}

void SimulatedGates::append_go(int rank) { gates_.at(static_cast<size_t>(rank))->append_owed(); }

void SimulatedGates::look(int rank) { gates_.at(static_cast<size_t>(rank))->seen += "|"; }

std::string SimulatedGates::history() const {
  std::string all = ring_;
  for (const auto& gate : gates_) all += concat(";", gate->seen);
  return all;
}

}  // namespace horon::simulation
