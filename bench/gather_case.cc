#include "horon/bench/collective_case.h"

namespace horon::bench {
namespace {

void run_peer(Peer& peer, const Call& call) {
  peer.gather(call.input, call.output, call.shape.input_count, call.spec->dtype, call.root_index);
}

}  // namespace

// The message size is that of the result, which the root alone has.
const CollectiveCase& gather_case() {
  static constexpr CollectiveCase instance{CollectiveKind::Gather,
                                           one_block_in,
                                           all_but_own_block,
                                           false,
                                           submit_and_wait,
                                           run_peer,
                                           blocks_of_all,
                                           false,
                                           true};
  return instance;
}

}  // namespace horon::bench
