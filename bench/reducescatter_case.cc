#include "horon/bench/collective_case.h"

namespace horon::bench {
namespace {

void run_peer(Peer& peer, const Call& call) {
  peer.reducescatter(call.input, call.output, call.shape.output_count, call.spec->dtype,
                     call.spec->reduce_op);
}

std::vector<PeriodicData> expected(const TestData& data, int, int) { return {data.reduced()}; }

}  // namespace

// The message size is that of the input.
const CollectiveCase& reducescatter_case() {
  static constexpr CollectiveCase instance{CollectiveKind::Reducescatter,
                                           one_block_out,
                                           all_but_own_block,
                                           false,
                                           submit_and_wait,
                                           run_peer,
                                           expected,
                                           true};
  return instance;
}

}  // namespace horon::bench
