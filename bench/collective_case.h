// One collective for the benchmark, as a table of functions. A new collective is a new file and a
// line in find_case().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "horon/bench/peer.h"
#include "horon/bench/test_data.h"
#include "horon/core/base/entry_spec.h"

namespace horon::core {
class Runtime;
}

namespace horon::bench {

// The elements of one message on one rank. `message_bytes` is printed as the size, and bandwidths
// are computed from it. As in nccl-tests it is the size of the result for allgather.
struct Shape {
  int64_t input_count = 0;
  int64_t output_count = 0;
  int64_t message_bytes = 0;
};

// A stretch of the call's elements.
struct Stretch {
  int64_t begin = 0;
  int64_t count = 0;
};

// One submission of a call, with a part for each stretch.
struct CallEntry {
  std::string name;
  std::shared_ptr<const core::EntrySpec> spec;
  std::vector<Stretch> stretches;
};

// One call of the collective. It is in place if input == output.
struct Call {
  std::shared_ptr<const core::EntrySpec> spec;  // as if all elements were one tensor
  std::vector<CallEntry> entries;
  bool async = false;            // submitted and then waited for, also if it is one entry
  int device_index = 0;          // of the memory
  bool waits_for_device = true;  // false: returns when the work is enqueued on the device
  uint32_t set = 0;              // ProcessSet::id()
  int ranks = 0;                 // of the set
  int root_index = 0;            // in the set; spec->root is a rank of the world
  Shape shape;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // Owns input and output: peers may still write there when the call has failed here.
  std::shared_ptr<void> memory;
};

struct CollectiveCase {
  CollectiveKind kind;
  // The largest shape of at most `bytes`, with at least one element.
  Shape (*shape)(int64_t bytes, DataType dtype, int ranks);
  // busbw / algbw, as in nccl-tests, so that busbw can be compared between numbers of ranks.
  double (*bus_factor)(int ranks);
  bool has_in_place;
  // Runs the call through the runtime's queue, as programs do. Returns when the result is complete;
  // throws the collective's error.
  void (*run)(core::Runtime& runtime, const Call& call);
  void (*run_peer)(Peer& peer, const Call& call);
  // The expected output: blocks of equal size, one behind the other. `root` is an index.
  std::vector<PeriodicData> (*expected)(const TestData& data, int ranks, int root);
  // Inputs have N equal parts, and the result is made from this rank's part of each input.
  bool own_part = false;
  bool result_at_root = false;  // the other ranks get none
};

const CollectiveCase& allreduce_case();
const CollectiveCase& broadcast_case();
const CollectiveCase& allgather_case();
const CollectiveCase& reducescatter_case();
const CollectiveCase& alltoall_case();
const CollectiveCase& gather_case();
const CollectiveCase& scatter_case();
const CollectiveCase& barrier_case();
const CollectiveCase& find_case(CollectiveKind kind);

// For the cases.
// Submits the entries, each from input to output, and waits.
void submit_and_wait(core::Runtime& runtime, const Call& call);
// Shapes in which the message is a block for each rank. A rank has one block of it as input and the
// whole as output, or the other way round.
Shape one_block_in(int64_t bytes, DataType dtype, int ranks);
Shape one_block_out(int64_t bytes, DataType dtype, int ranks);
// A bus factor: all but a rank's own block travels.
double all_but_own_block(int ranks);
// An expected output: the block of each rank.
std::vector<PeriodicData> blocks_of_all(const TestData& data, int ranks, int root);

}  // namespace horon::bench
