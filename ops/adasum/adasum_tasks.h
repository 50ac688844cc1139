// What each rank does for an allreduce by Adasum, as a list of tasks.
#pragma once

#include <cstdint>
#include <vector>

namespace horon::ops {

struct AdasumRange {  // of elements
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
};

struct AdasumTask {
  enum class Kind : uint8_t {
    CopyIn,       // the input, scaled, into the output
    Exchange,     // sends `given`, receives `kept`
    Products,     // of this rank's vectors and the received ones
    SumProducts,  // with those of the peer
    Combine,
    ScaleResult,
  };
  Kind kind;
  int peer = -1;
  AdasumRange given = {};  // of the output
  AdasumRange kept = {};
  bool own_first = true;    // this rank's vectors are a, the received ones b
  bool into_output = true;  // what is received; else into scratch
};

// The tasks in their order. A rank's exchanges and sums with a peer have the same order as the
// peer's with the rank, since one tag serves for all of them. `count`: elements of the batch.
std::vector<AdasumTask> adasum_tasks(int rank, int size, int64_t count);

}  // namespace horon::ops
