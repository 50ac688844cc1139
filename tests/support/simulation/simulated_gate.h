// The gates of a simulated job: real rings in plain memory, but a Go comes later than the fill that
// it belongs to, when the driver says so, as if the process had been stopped in between.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "horon/core/negotiation/ring_gate.h"

namespace horon::simulation {

class SimulatedGates {
 public:
  // `note` gets a line about each thing that happens.
  SimulatedGates(int size, std::function<void(const std::string& line)> note);
  ~SimulatedGates();
  SimulatedGates(const SimulatedGates&) = delete;
  SimulatedGates& operator=(const SimulatedGates&) = delete;

  core::Gate* of(int rank);
  bool owes_go(int rank) const;
  // Appends the oldest Go that this rank owes.
  void append_go(int rank);
  // Ranks that owe a new Go since the last call.
  std::vector<int> take_owing() { return std::exchange(owing_, {}); }

  // A rank looks at its gate from here on: separates what it saw in history().
  void look(int rank);
  // What every rank has seen of the gate, and what is in the ring: with the calls and messages of
  // all ranks this decides the state of the job.
  std::string history() const;

 private:
  class OneGate;

  std::vector<std::byte> memory_;
  std::vector<std::unique_ptr<OneGate>> gates_;
  std::vector<int> owing_;
  std::string ring_;
  std::function<void(const std::string& line)> note_;
};

}  // namespace horon::simulation
