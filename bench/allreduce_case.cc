#include <algorithm>

#include "horon/bench/collective_case.h"

namespace horon::bench {
namespace {

Shape shape(int64_t bytes, DataType dtype, int) {
  const auto element = static_cast<int64_t>(size_of(dtype));
  const int64_t count = std::max<int64_t>(1, bytes / element);
  return {count, count, count * element};
}

// Each rank must send and receive all but its own N-th twice: to add the parts, and to share them.
double bus_factor(int ranks) { return 2.0 * (ranks - 1) / ranks; }

void run_peer(Peer& peer, const Call& call) {
  peer.allreduce(call.input, call.output, call.shape.input_count, call.spec->dtype,
                 call.spec->reduce_op);
}

std::vector<PeriodicData> expected(const TestData& data, int, int) { return {data.reduced()}; }

}  // namespace

const CollectiveCase& allreduce_case() {
  static constexpr CollectiveCase instance{CollectiveKind::Allreduce, shape,    bus_factor, true,
                                           submit_and_wait,           run_peer, expected};
  return instance;
}

}  // namespace horon::bench
