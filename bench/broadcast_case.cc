#include <algorithm>
#include <cstring>

#include "horon/bench/collective_case.h"

namespace horon::bench {
namespace {

Shape shape(int64_t bytes, DataType dtype, int) {
  const auto element = static_cast<int64_t>(size_of(dtype));
  const int64_t count = std::max<int64_t>(1, bytes / element);
  return {count, count, count * element};
}

double bus_factor(int) { return 1; }

void run_peer(Peer& peer, const Call& call) {
  // MPI broadcasts in place only, so out of place a copy is added. Horon's root copies too.
  if (call.input != call.output) {
    std::memcpy(call.output, call.input, static_cast<size_t>(call.shape.message_bytes));
  }
  peer.broadcast(call.output, call.shape.output_count, call.spec->dtype, call.root_index);
}

std::vector<PeriodicData> expected(const TestData& data, int, int root) {
  return {data.of_rank(root)};
}

}  // namespace

const CollectiveCase& broadcast_case() {
  static constexpr CollectiveCase instance{CollectiveKind::Broadcast, shape,    bus_factor, true,
                                           submit_and_wait,           run_peer, expected};
  return instance;
}

}  // namespace horon::bench
