#include "horon/bench/collective_case.h"

namespace horon::bench {
namespace {

void run_peer(Peer& peer, const Call& call) {
  peer.scatter(call.input, call.output, call.shape.output_count, call.spec->dtype, call.root_index);
}

std::vector<PeriodicData> expected(const TestData& data, int, int root) {
  return {data.of_rank(root)};
}

}  // namespace

// The message size is that of the root's input.
const CollectiveCase& scatter_case() {
  static constexpr CollectiveCase instance{
      CollectiveKind::Scatter, one_block_out, all_but_own_block, false,
      submit_and_wait,         run_peer,      expected,          true};
  return instance;
}

}  // namespace horon::bench
