// Which algorithm runs a collective: a pure function of its kind and length, of where the members
// are, and of how fast their machines are. All ranks know the same facts, so all choose alike. The
// ops that have several ways ask it; horon-info prints its answers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "horon/core/base/entry_spec.h"
#include "horon/ops/choice/machine_constants.h"

namespace horon::ops {

enum class Algorithm : uint8_t {
  Cells,      // shared memory: each rank adds the inputs of all for itself (small_allreduce.h)
  Pieces,     // shared memory: each piece is added by one rank for all (piece_allreduce.h)
  Blocks,     // shared memory: each block is copied once (block_exchange.h)
  OneRound,   // hosts: each sends all others its sum (chunk_exchange.h)
  TwoRounds,  // hosts: each adds a part and sends the result back (chunk_exchange.h)
  Tree,       // hosts: along a tree, or a chain if the fan-out is 1 (chunk_spread.h)
  ToAll,      // hosts: each sends what its members have to all others (chunk_spread.h)
  Collect,    // hosts: the sums of all hosts go to the member's host (chunk_collect.h)
  Messages,   // hosts: every two members exchange their blocks (message_exchange.h)
  Mpi,        // whatever MPI does
};
std::string_view to_string(Algorithm algorithm);

// How the members reach each other.
enum class Reach : uint8_t {
  SharedMemory,  // all are on one host and map each other's memory
  Hosts,         // on several, each of which has shared memory or one member
  MpiAlone,
};

struct Situation {
  CollectiveKind kind = CollectiveKind::Allreduce;
  Reach reach = Reach::SharedMemory;
  int hosts = 1;
  int ranks_of_host = 1;  // of the host that has most
  // As it travels: all of an allreduce or a broadcast, else what one member sends.
  int64_t bytes = 0;
  int64_t result_bytes = 0;  // Allreduce between hosts: as the result travels
  int64_t cell_bytes = 0;    // Allreduce in shared memory: what a cell holds
  int64_t chunk_bytes = 0;   // Broadcast between hosts: what is passed on in one go
};

struct Choice {
  Algorithm algorithm = Algorithm::Mpi;
  int fan_out = 1;  // Tree: children of each host

  bool operator==(const Choice&) const = default;
};

Choice choose_algorithm(const Situation& situation, const MachineConstants& constants);

// What the choice compares: a time without what all candidates have in common. Only for algorithms
// that are compared with others: Cells, Pieces, OneRound, TwoRounds and Tree.
double compared_us(const Situation& situation, const Choice& choice,
                   const MachineConstants& constants);

// Whether the kernel copies long blocks between the private memories of two ranks of a host, where
// it may; else they go by way of shared memory. `knob`: the value of HORON_CMA.
bool copies_by_kernel(std::string_view knob, const MachineConstants& constants);

// For people: "two rounds", "tree of fan-out 3", "chain".
std::string describe(const Choice& choice);

}  // namespace horon::ops
