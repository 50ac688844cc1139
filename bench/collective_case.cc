#include "horon/bench/collective_case.h"

#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/execution/block_layout.h"
#include "horon/core/runtime/runtime.h"

namespace horon::bench {

const CollectiveCase& find_case(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::Allreduce:
      return allreduce_case();
    case CollectiveKind::Broadcast:
      return broadcast_case();
    case CollectiveKind::Allgather:
      return allgather_case();
    case CollectiveKind::Reducescatter:
      return reducescatter_case();
    case CollectiveKind::Alltoall:
      return alltoall_case();
    default:
      throw Error(ErrorCode::InvalidArgument,
                  core::concat("there is no benchmark of ", to_string(kind)));
  }
}

void submit_and_wait(core::Runtime& runtime, const Call& call) {
  core::Submission submission;
  submission.name = call.name;
  submission.spec = call.spec;
  const bool blocks = core::moves_blocks(call.spec->kind);
  submission.memory.push_back({call.input, blocks ? nullptr : call.output, call.shape.input_count});
  if (call.spec->kind == CollectiveKind::Alltoall) {
    submission.splits = core::even_splits(call.shape.input_count, runtime.topology().size);
  }
  if (blocks) {
    submission.allocate_output = [output = call.output](size_t, int64_t) { return output; };
  }
  submission.keep_alive = call.memory;
  (void)runtime.run(std::move(submission))->get();
}

}  // namespace horon::bench
