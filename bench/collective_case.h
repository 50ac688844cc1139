// One collective as the bench sees it: a table of functions, so that a new collective is a new file
// and a line in find_case().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "horon/bench/mpi_peer.h"
#include "horon/bench/test_data.h"
#include "horon/core/base/entry_spec.h"

namespace horon::core {
class Runtime;
}

namespace horon::bench {

// Elements of one message on one rank. `message_bytes` is what the size column says and bandwidths
// are made of: nccl-tests' habit, for allgather that is the result.
struct Shape {
  int64_t input_count = 0;
  int64_t output_count = 0;
  int64_t message_bytes = 0;
};

// One call. In place: input == output.
struct Call {
  std::string name;
  std::shared_ptr<const core::EntrySpec> spec;
  Shape shape;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
};

struct CollectiveCase {
  CollectiveKind kind;
  // The largest shape of at most so many bytes, at least one element.
  Shape (*shape)(int64_t bytes, DataType dtype, int ranks);
  // busbw = algbw * this: what the wires carry, whatever the number of ranks (nccl-tests).
  double (*bus_factor)(int ranks);
  bool has_in_place;
  // By way of the runtime's queue, as any program would. Returns when the result is there; throws
  // the collective's error.
  void (*run)(core::Runtime& runtime, const Call& call);
  void (*run_peer)(MpiPeer& peer, const Call& call);
  // What must come out: the output is that many blocks of equal size, one behind the other.
  std::vector<PeriodicData> (*expected)(const TestData& data, int ranks, int root);
  // The result is about this rank's part of each input (of N equal parts), not about all of it.
  bool own_part = false;
};

const CollectiveCase& allreduce_case();
const CollectiveCase& broadcast_case();
const CollectiveCase& allgather_case();
const CollectiveCase& reducescatter_case();
const CollectiveCase& alltoall_case();
const CollectiveCase& find_case(CollectiveKind kind);

// Shared by the cases: submits one part from input to output and waits.
void submit_and_wait(core::Runtime& runtime, const Call& call);

}  // namespace horon::bench
