#include "horon/bench/collective_case.h"

namespace horon::bench {
namespace {

void run_peer(Peer& peer, const Call& call) {
  peer.allgather(call.input, call.output, call.shape.input_count, call.spec->dtype);
}

}  // namespace

// The message size is that of the result.
const CollectiveCase& allgather_case() {
  static constexpr CollectiveCase instance{
      CollectiveKind::Allgather, one_block_in, all_but_own_block, false,
      submit_and_wait,           run_peer,     blocks_of_all};
  return instance;
}

}  // namespace horon::bench
