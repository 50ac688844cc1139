#include "horon/core/runtime/submission_check.h"

#include <algorithm>

#include "horon/core/base/text.h"

namespace horon::core {
namespace {

std::string fault_of_spec(const EntrySpec& spec, int world_size) {
  const bool reduces = spec.kind == CollectiveKind::Allreduce;
  if (spec.kind == CollectiveKind::Broadcast && (spec.root < 0 || spec.root >= world_size)) {
    return concat("root ", spec.root, " is no rank; ranks are 0 to ", world_size - 1);
  }
  if (reduces && spec.dtype == DataType::Bool && spec.reduce_op == ReduceOp::Average) {
    return "an average of bool is not defined; use Max (any), Min (all) or a float dtype";
  }
  const bool scaled = spec.prescale != 1.0 || spec.postscale != 1.0;
  if (scaled && (!reduces || !is_floating(spec.dtype))) {
    return concat("prescale and postscale are for allreduce of floating types, not for ",
                  to_string(spec.kind), " of ", to_string(spec.dtype));
  }
  if (spec.kind == CollectiveKind::Allgather &&
      (spec.parts.size() != 1 || spec.parts[0].shape.empty())) {
    return "allgather needs one tensor of at least one dimension";
  }
  for (const TensorPart& part : spec.parts) {
    const auto negative = std::find_if(part.shape.begin(), part.shape.end(),
                                       [](int64_t extent) { return extent < 0; });
    if (negative != part.shape.end()) return concat("negative extent in ", shape_text(part.shape));
  }
  return "";
}

}  // namespace

std::string find_fault(const Submission& submission, int world_size) {
  if (submission.spec == nullptr) return "it has no spec";
  const EntrySpec& spec = *submission.spec;
  if (submission.name.empty()) return "the name is empty";
  if (submission.name.size() > kNameBytesMax) {
    return concat("the name has ", submission.name.size(), " bytes; the limit is ", kNameBytesMax);
  }
  if (spec.parts.size() > kPartsMax) {
    return concat("it has ", spec.parts.size(), " parts; the limit is ", kPartsMax);
  }
  if (std::string fault = fault_of_spec(spec, world_size); !fault.empty()) return fault;
  if (!submission.absent.empty() && submission.absent.size() != spec.parts.size()) {
    return "the absent flags do not fit the parts";
  }
  int64_t count = 0;
  for (const MemoryPart& part : submission.memory) count += part.count;
  if (count != element_count(spec)) {
    return concat("its memory holds ", count, " elements, its shapes say ", element_count(spec));
  }
  if (spec.kind == CollectiveKind::Allgather &&
      (submission.allocate_output == nullptr || submission.memory.size() != 1)) {
    return "allgather needs one piece of memory and an allocator for its result";
  }
  return "";
}

}  // namespace horon::core
