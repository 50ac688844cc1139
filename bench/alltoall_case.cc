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

void run_peer(Peer& peer, const Call& call) {
  peer.alltoall(call.input, call.output, call.shape.input_count / peer.size(), call.spec->dtype);
}

}  // namespace

const CollectiveCase& alltoall_case() {
  static constexpr CollectiveCase instance{
      CollectiveKind::Alltoall, shape,    all_but_own_block, false,
      submit_and_wait,          run_peer, blocks_of_all,     true};
  return instance;
}

}  // namespace horon::bench
