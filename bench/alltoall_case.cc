#include <algorithm>

#include "horon/bench/collective_case.h"

namespace horon::bench {
namespace {

// The message size is that of the input, and of the result.
Shape shape(int64_t bytes, DataType dtype, int ranks) {
  const auto element = static_cast<int64_t>(size_of(dtype));
  const int64_t count = std::max<int64_t>(1, bytes / element / ranks) * ranks;
  return {count, count, count * element};
}

// The block that a rank sends itself does not travel.
double bus_factor(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

void run_peer(Peer& peer, const Call& call) {
  peer.alltoall(call.input, call.output, call.shape.input_count / peer.size(), call.spec->dtype);
}

std::vector<PeriodicData> expected(const TestData& data, int ranks, int) {
  std::vector<PeriodicData> blocks;
  for (int rank = 0; rank < ranks; ++rank) blocks.push_back(data.of_rank(rank));
  return blocks;
}

}  // namespace

const CollectiveCase& alltoall_case() {
  static constexpr CollectiveCase instance{CollectiveKind::Alltoall, shape,    bus_factor, false,
                                           submit_and_wait,          run_peer, expected,   true};
  return instance;
}

}  // namespace horon::bench
