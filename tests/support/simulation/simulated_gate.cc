#include "horon/tests/support/simulation/simulated_gate.h"

#include <deque>
#include <optional>

#include "horon/core/base/text.h"
#include "horon/tests/support/simulation/program.h"

namespace horon::simulation {

using core::concat;
using core::RingItem;

class SimulatedGates::OneGate : public core::Gate {
 public:
  OneGate(SimulatedGates& all, std::byte* memory, int rank, int index, Host& host)
      : all_(all),
        rank_(rank),
        host_(host),
        ring_(
            memory, index, static_cast<int>(host.ranks.size()), [this] { all_.wake_others(rank_); },
            [this] { all_.woken_.push_back(host_.ranks.front()); }) {}

  bool fill(core::Place place) override {
    const bool last = ring_.fill(place);
    seen += concat("f", place, last ? "!" : "");
    all_.note_(concat(rank_, ": fills place ", place, last ? ", the last one" : ""));
    return last;
  }
  void append_go(core::Place place, bool more) override {
    const RingItem entry{RingItem::Kind::Go, place, more};
    // Between hosts one rank appends Go entries and markers at once, so that they keep their order.
    if (all_.several_hosts()) return append(entry);
    owe(entry);
  }
  void append_marker(uint64_t position) override { append({RingItem::Kind::Marker, position}); }
  void append_filled(core::Place place) override { owe({RingItem::Kind::Filled, place}); }
  void wake() override { ring_.wake(); }
  bool room() const override { return ring_.room(); }
  std::optional<RingItem> next(uint64_t applied) override {
    const std::optional<RingItem> entry = ring_.next(applied);
    if (entry) seen += text_of(*entry);
    return entry;
  }
  void append_owed() {
    append(owed.front());
    owed.pop_front();
    // The rank that appends reads on as well. For a Go that says "more" the ring wakes no other
    // rank.
    all_.woken_.push_back(rank_);
    if (!all_.several_hosts()) all_.wake_others(rank_);
  }

  std::deque<RingItem> owed;
  std::string seen;

 private:
  static std::string text_of(const RingItem& entry) {
    const char kind = entry.kind == RingItem::Kind::Go       ? 'g'
                      : entry.kind == RingItem::Kind::Marker ? 'm'
                                                             : 'F';
    return concat(kind, entry.value, entry.more ? "+" : "");
  }
  void owe(const RingItem& entry) {
    owed.push_back(entry);
    all_.owing_.push_back(rank_);
  }
  void append(const RingItem& entry) {
    const auto place = static_cast<core::Place>(entry.value);
    if (entry.kind == RingItem::Kind::Go) ring_.append_go(place, entry.more);
    if (entry.kind == RingItem::Kind::Filled) ring_.append_filled(place);
    if (entry.kind == RingItem::Kind::Marker) ring_.append_marker(entry.value);
    host_.ring += text_of(entry) + ",";
    all_.note_(concat(host_.name, ": ", describe(entry)));
  }

  SimulatedGates& all_;
  const int rank_;
  Host& host_;
  core::RingGate ring_;
};

SimulatedGates::SimulatedGates(int size, std::vector<int> host_of,
                               std::function<void(const std::string& line)> note)
    : host_of_(std::move(host_of)), note_(std::move(note)) {
  host_of_.resize(static_cast<size_t>(size));
  for (size_t rank = 0; rank < host_of_.size(); ++rank) {
    const auto host = static_cast<size_t>(host_of_[rank]);
    if (host == hosts_.size()) hosts_.emplace_back();
    hosts_.at(host).ranks.push_back(static_cast<int>(rank));
  }
  std::vector<std::byte*> areas;
  for (Host& host : hosts_) {
    const size_t bytes = core::RingGate::bytes(static_cast<int>(host.ranks.size()));
    host.memory.resize(bytes + 64);
    void* area = host.memory.data();
    size_t space = host.memory.size();
    areas.push_back(static_cast<std::byte*>(std::align(64, bytes, area, space)));
    host.name = several_hosts() ? concat("ring of host ", areas.size() - 1) : "ring";
  }
  std::vector<int> made(hosts_.size());
  for (size_t rank = 0; rank < host_of_.size(); ++rank) {
    const auto host = static_cast<size_t>(host_of_[rank]);
    gates_.push_back(std::make_unique<OneGate>(*this, areas[host], static_cast<int>(rank),
                                               made[host]++, hosts_[host]));
  }
}

SimulatedGates::~SimulatedGates() = default;

core::Gate* SimulatedGates::of(int rank) { return gates_.at(static_cast<size_t>(rank)).get(); }

bool SimulatedGates::owes(int rank) const {
  return !gates_.at(static_cast<size_t>(rank))->owed.empty();
}

void SimulatedGates::append_owed(int rank) { gates_.at(static_cast<size_t>(rank))->append_owed(); }

void SimulatedGates::look(int rank) { gates_.at(static_cast<size_t>(rank))->seen += "|"; }

void SimulatedGates::wake_others(int rank) {
  for (const int other : hosts_[static_cast<size_t>(host_of_[static_cast<size_t>(rank)])].ranks) {
    if (other != rank) woken_.push_back(other);
  }
}

std::string SimulatedGates::history() const {
  std::string all;
  for (const Host& host : hosts_) all += host.ring + ";";
  for (const auto& gate : gates_) all += concat(gate->seen, ";");
  return all;
}

}  // namespace horon::simulation
