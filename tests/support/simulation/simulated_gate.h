// The gates of a simulated job, one for each host: real rings in plain memory. A rank that is the
// last to fill a place owes the ring an entry (a Go, or a Filled if there are several hosts). The
// entry comes later than the fill, when the driver says so, as if the process had been stopped in
// between.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "horon/core/negotiation/ring_gate.h"

namespace horon::simulation {

class SimulatedGates {
 public:
  // `host_of`: see Controller::Options. `note` gets a line about each thing that happens.
  SimulatedGates(int size, std::vector<int> host_of,
                 std::function<void(const std::string& line)> note);
  ~SimulatedGates();
  SimulatedGates(const SimulatedGates&) = delete;
  SimulatedGates& operator=(const SimulatedGates&) = delete;

  core::Gate* of(int rank);
  bool owes(int rank) const;
  // Appends the oldest entry that this rank owes.
  void append_owed(int rank);
  // Ranks that owe a new entry since the last call.
  std::vector<int> take_owing() { return std::exchange(owing_, {}); }
  // Ranks whose doorbell has rung since the last call.
  std::vector<int> take_woken() { return std::exchange(woken_, {}); }

  // A new look of the rank at its gate begins: history() separates what it saw in each look.
  void look(int rank);
  // What every rank has seen of its gate, and what is in the rings. Together with the calls and
  // messages of all ranks this decides the state of the job.
  std::string history() const;

 private:
  class OneGate;
  struct Host {
    std::vector<int> ranks;
    std::vector<std::byte> memory;
    std::string ring;  // what is in it
    std::string name;  // of the ring
  };

  bool several_hosts() const { return hosts_.size() > 1; }
  void wake_others(int rank);

  std::vector<int> host_of_;
  std::vector<Host> hosts_;
  std::vector<std::unique_ptr<OneGate>> gates_;
  std::vector<int> owing_;
  std::vector<int> woken_;
  std::function<void(const std::string& line)> note_;
};

}  // namespace horon::simulation
