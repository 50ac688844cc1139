#include "horon/bench/collective_case.h"

namespace horon::bench {
namespace {

Shape shape(int64_t, DataType, int) { return {}; }

double bus_factor(int) { return 0; }

void run_peer(Peer& peer, const Call&) { peer.barrier(); }

std::vector<PeriodicData> expected(const TestData&, int, int) { return {}; }

}  // namespace

const CollectiveCase& barrier_case() {
  static constexpr CollectiveCase instance{CollectiveKind::Barrier, shape,    bus_factor, false,
                                           submit_and_wait,         run_peer, expected};
  return instance;
}

}  // namespace horon::bench
