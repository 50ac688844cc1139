#include <algorithm>

#include "horon/bench/collective_case.h"

namespace horon::bench {
namespace {

// The message size is that of the input.
Shape shape(int64_t bytes, DataType dtype, int ranks) {
  const auto element = static_cast<int64_t>(size_of(dtype));
  const int64_t count = std::max<int64_t>(1, bytes / element / ranks);
  return {count * ranks, count, count * ranks * element};
}

double bus_factor(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

void run_peer(Peer& peer, const Call& call) {
  peer.reducescatter(call.input, call.output, call.shape.output_count, call.spec->dtype,
                     call.spec->reduce_op);
}

std::vector<PeriodicData> expected(const TestData& data, int, int) { return {data.reduced()}; }

}  // namespace

const CollectiveCase& reducescatter_case() {
  static constexpr CollectiveCase instance{CollectiveKind::Reducescatter,
                                           shape,
                                           bus_factor,
                                           false,
                                           submit_and_wait,
                                           run_peer,
                                           expected,
                                           true};
  return instance;
}

}  // namespace horon::bench
