#include "horon/bench/collective_case.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/execution/block_layout.h"
#include "horon/core/runtime/runtime.h"

namespace horon::bench {
namespace {

core::Submission submission_of(core::Runtime& runtime, const Call& call, const CallEntry& entry) {
  core::Submission submission;
  submission.set = call.set;
  submission.name = entry.name;
  submission.spec = entry.spec;
  submission.keep_alive = call.memory;
  if (entry.spec->kind == CollectiveKind::Barrier) return submission;
  const bool blocks = core::moves_blocks(entry.spec->kind);
  const auto element = static_cast<int64_t>(size_of(entry.spec->dtype));
  for (const auto& [begin, count] : entry.stretches) {
    const int64_t offset = begin * element;
    submission.memory.push_back(
        {call.input + offset, blocks ? nullptr : call.output + offset, count});
  }
  const bool is_root = entry.spec->root == runtime.topology().rank;
  if (entry.spec->kind == CollectiveKind::Alltoall ||
      (entry.spec->kind == CollectiveKind::Scatter && is_root)) {
    submission.splits = core::even_splits(call.shape.input_count, call.ranks);
  }
  if (blocks) {
    submission.allocate_output = [output = call.output](size_t, int64_t, core::MemoryQueue&) {
      return output;
    };
  }
  submission.device_index = call.device_index;
  return submission;
}

int64_t elements_of_block(int64_t bytes, DataType dtype, int ranks) {
  return std::max<int64_t>(1, bytes / static_cast<int64_t>(size_of(dtype)) / ranks);
}

}  // namespace

Shape one_block_in(int64_t bytes, DataType dtype, int ranks) {
  const int64_t count = elements_of_block(bytes, dtype, ranks);
  return {count, count * ranks, count * ranks * static_cast<int64_t>(size_of(dtype))};
}

Shape one_block_out(int64_t bytes, DataType dtype, int ranks) {
  const Shape shape = one_block_in(bytes, dtype, ranks);
  return {shape.output_count, shape.input_count, shape.message_bytes};
}

double all_but_own_block(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

std::vector<PeriodicData> blocks_of_all(const TestData& data, int ranks, int) {
  std::vector<PeriodicData> blocks;
  for (int rank = 0; rank < ranks; ++rank) blocks.push_back(data.of_rank(rank));
  return blocks;
}

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
    case CollectiveKind::Gather:
      return gather_case();
    case CollectiveKind::Scatter:
      return scatter_case();
    case CollectiveKind::Barrier:
      return barrier_case();
  }
  HORON_CHECK(false, "unknown kind of collective");
}

void submit_and_wait(core::Runtime& runtime, const Call& call) {
  const auto wait = [&](const core::HandleState& handle) {
    (void)(call.waits_for_device ? handle.get() : handle.get_enqueued());
  };
  if (!call.async) {
    wait(*runtime.run(submission_of(runtime, call, call.entries.front())));
    return;
  }
  std::vector<std::shared_ptr<core::HandleState>> handles;
  handles.reserve(call.entries.size());
  for (const CallEntry& entry : call.entries) {
    handles.push_back(runtime.submit(submission_of(runtime, call, entry)));
  }
  for (const auto& handle : handles) wait(*handle);
}

}  // namespace horon::bench
