// How the ranks of several hosts share a collective: who talks to whom, in pieces of which length,
// in one round or in two. Pure functions of facts that all ranks share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"
#include "horon/core/bootstrap/topology.h"
#include "horon/ops/choice/machine_constants.h"
#include "horon/ops/hierarchical/wire_type.h"

namespace horon::ops {

// The ranks with the same number on their hosts form a lane. There are as many lanes as the host
// with the fewest ranks has ranks. Each lane carries every lanes-th chunk, and a rank without a
// lane only gives its input and gets its result.
struct HostsLayout {
  int hosts = 1;
  int host = 0;  // of this rank
  int local_rank = 0;
  int local_size = 1;
  int lanes = 1;
  int most_ranks = 1;      // of one host
  std::vector<int> peers;  // [host]: the member in this rank's lane; empty without a lane

  bool drives() const { return local_rank < lanes; }
  // How many of `chunks` chunks a lane carries.
  int64_t of_lane(int64_t chunks, int lane) const { return (chunks - lane + lanes - 1) / lanes; }
  bool one_rank_each() const { return most_ranks == 1; }
};

HostsLayout make_hosts_layout(const core::Topology& topology);

struct ExchangePlan {
  // What the wire carries of each host. Raw: its one rank's input, in the type of the batch.
  // Otherwise the sum of its ranks, in the type that sums are made in, or rounded to less than
  // float32 (wire_type.h).
  bool raw = false;
  WireType wire_type;
  // One round: every host sends all others the whole chunk, and each adds all of them. Two rounds:
  // each host adds one part of the chunk and sends the result to all others.
  bool one_round = false;
  int64_t count = 0;           // elements of the batch
  int64_t chunk_elements = 0;  // of all chunks but the last
  int64_t chunks = 0;
  int chunks_at_once = 1;  // of one lane

  struct Stretch {
    int64_t begin = 0;  // elements
    int64_t count = 0;
  };
  // A chunk within the batch, and the part of a host within its chunk (two rounds).
  Stretch chunk(int64_t index) const;
  Stretch part(const Stretch& chunk, int host, int hosts) const;
};

// The longest message, unless longer chunks are asked for. Over TCP, Open MPI sends up to 64 KiB,
// with its header, at once. For longer ones it asks the receiver first, and the answer queues
// behind the data that flows back: a wire that is busy both ways then carries little more than
// half.
inline constexpr int64_t kMessageBytes = 56 << 10;

// The least bytes for which another lane pays.
inline constexpr int64_t kLaneBytesMin = 16 << 10;

// The longest message in elements, if a chunk is cut into `parts` messages, and `addends` messages
// are added in one go (1: they are only passed on). The work on a chunk in one go must not hold up
// the loop. `dtype`: of the batch.
int64_t message_elements(const HostsLayout& layout, DataType dtype, WireType wire_type,
                         int64_t parts, int64_t addends);
// The elements of one chunk. The lanes share `count` elements, as far as that pays. `longest`: a
// multiple of the message.
int64_t chunk_elements(const HostsLayout& layout, WireType wire_type, int64_t count,
                       int64_t longest);
// How many chunks of a lane are under way at a time, with so many messages of each. The lanes of a
// host share its cable, and its ranks stage the chunks of all lanes, so with more lanes each has
// fewer.
int chunks_at_once(const HostsLayout& layout, WireType wire_type, int64_t message,
                   int64_t messages_of_chunk);

// `allowed`: as in choose_wire_type(). `piece_bytes`: Batch::piece_bytes, the length of a chunk; it
// changes no bits of the result. The constants choose the number of rounds; but for rounded sums
// the default constants do. There two rounds round once more, so measured constants would make
// results differ from one run to another.
ExchangePlan plan_exchange(const HostsLayout& layout, DataType dtype, ReduceOp op, int64_t count,
                           WireType allowed = DataType::Float32,
                           const MachineConstants& constants = {}, int64_t piece_bytes = 0);

// For people: "2 hosts, 2 lanes, one round, 19 chunks of 56 KiB of float32".
std::string describe(const HostsLayout& layout, const ExchangePlan& plan);

}  // namespace horon::ops
