#include <algorithm>

#include "horon/bench/collective_case.h"

namespace horon::bench {
namespace {

// The message size is that of the result.
Shape shape(int64_t bytes, DataType dtype, int ranks) {
  const auto element = static_cast<int64_t>(size_of(dtype));
  const int64_t count = std::max<int64_t>(1, bytes / element / ranks);
  return {count, count * ranks, count * ranks * element};
}

double bus_factor(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

void run_peer(Peer& peer, const Call& call) {
  peer.allgather(call.input, call.output, call.shape.input_count, call.spec->dtype);
}

std::vector<PeriodicData> expected(const TestData& data, int ranks, int) {
  std::vector<PeriodicData> blocks;
  for (int rank = 0; rank < ranks; ++rank) blocks.push_back(data.of_rank(rank));
  return blocks;
}

}  // namespace

const CollectiveCase& allgather_case() {
  static constexpr CollectiveCase instance{CollectiveKind::Allgather, shape,    bus_factor, false,
                                           submit_and_wait,           run_peer, expected};
  return instance;
}

}  // namespace horon::bench
