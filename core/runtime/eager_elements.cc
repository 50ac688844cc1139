#include "horon/core/runtime/eager_elements.h"

#include <algorithm>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/execution/batch_description.h"

namespace horon::core {
namespace {

size_t bytes_of(const Submission& submission) {
  return static_cast<size_t>(element_count(*submission.spec)) * size_of(submission.spec->dtype);
}

}  // namespace

bool may_travel_with_vote(const Submission& submission, int64_t bytes_max) {
  const EntrySpec& spec = *submission.spec;
  if (!submission.awaited || spec.device != DeviceKind::Host || submission.narrowed ||
      submission.copied_to_host || submission.ready != nullptr || !submission.absent.empty()) {
    return false;
  }
  if (spec.kind == CollectiveKind::Barrier) return true;
  return spec.kind == CollectiveKind::Allreduce && spec.reduce_op != ReduceOp::Adasum &&
         spec.compression == Compression::None &&
         static_cast<int64_t>(bytes_of(submission)) <= bytes_max;
}

std::vector<std::byte> elements_of(const Submission& submission) {
  std::vector<std::byte> elements(bytes_of(submission));
  std::byte* to = elements.data();
  for (const MemoryPart& part : submission.memory) {
    const size_t bytes = static_cast<size_t>(part.count) * size_of(submission.spec->dtype);
    if (bytes > 0) copy_bytes(to, part.input, bytes);
    to += bytes;
  }
  return elements;
}

void reduce_elements(
    const Submission& submission, std::span<const int> ranks,
    const std::vector<std::vector<std::byte>>& elements,
    const std::function<void(const Batch&, std::span<const std::byte* const>)>& reduce) {
  const size_t bytes = bytes_of(submission);
  std::vector<const std::byte*> inputs;
  for (const std::vector<std::byte>& of_member : elements) {
    if (of_member.size() != bytes) {
      throw Error(ErrorCode::Internal, "a rank has sent another number of elements with its vote");
    }
    inputs.push_back(of_member.data());
  }
  if (bytes == 0) return;
  Batch batch = describe_batch(*submission.spec, static_cast<int>(ranks.size()), ranks);
  batch.count = element_count(*submission.spec);
  std::vector<std::byte> result(bytes);
  batch.output = result.data();
  reduce(batch, inputs);
  const std::byte* from = result.data();
  for (const MemoryPart& part : submission.memory) {
    const size_t of_part = static_cast<size_t>(part.count) * size_of(submission.spec->dtype);
    if (part.wants_output && of_part > 0) copy_bytes(part.output, from, of_part);
    from += of_part;
  }
}

}  // namespace horon::core
