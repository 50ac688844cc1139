#include "horon/core/runtime/submission_check.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "horon/core/base/narrow_type.h"
#include "horon/core/base/text.h"
#include "horon/core/execution/block_layout.h"
#include "horon/core/runtime/pair_sets.h"

namespace horon::core {
namespace {

bool has(std::span<const int> ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::string fault_of_spec(const EntrySpec& spec, std::span<const int> ranks) {
  if (has_root(spec.kind) && !has(ranks, spec.root)) {
    return concat("root ", spec.root, " is not in the process set; its ranks are ",
                  list_ranks(ranks));
  }
  if (reduces(spec.kind)) {
    const std::string_view fault = why_no_reduction(spec.dtype, spec.reduce_op);
    if (!fault.empty()) return std::string(fault);
  }
  if (spec.reduce_op == ReduceOp::Adasum && spec.kind == CollectiveKind::Reducescatter) {
    return "Adasum is for allreduce, not for reducescatter or reduce";
  }
  const bool scaled = spec.prescale != 1.0 || spec.postscale != 1.0;
  if (scaled && (!reduces(spec.kind) || !is_floating(spec.dtype))) {
    return concat("prescale and postscale are for reductions of floating types, not for ",
                  to_string(spec.kind), " of ", to_string(spec.dtype));
  }
  if (spec.compression != Compression::None &&
      (spec.kind != CollectiveKind::Allreduce || spec.dtype != DataType::Float32)) {
    return concat("compression is for allreduce of float32, not for ", to_string(spec.kind), " of ",
                  to_string(spec.dtype));
  }
  if (spec.piece_bytes < 0) return concat("piece_bytes is ", spec.piece_bytes, ", below 0");
  if (spec.piece_bytes > 0 && spec.kind != CollectiveKind::Allreduce) {
    return concat("piece_bytes is for allreduce, not for ", to_string(spec.kind));
  }
  for (const TensorPart& part : spec.parts) {
    const auto negative = std::find_if(part.shape.begin(), part.shape.end(),
                                       [](int64_t extent) { return extent < 0; });
    if (negative != part.shape.end()) return concat("negative extent in ", shape_text(part.shape));
    if (moves_blocks(spec.kind) && part.shape.empty() && !spec.as_one) {
      return concat(to_string(spec.kind), " needs tensors of at least one dimension");
    }
  }
  if (!countable(spec)) return "its shapes have more bytes than 64 bits can count";
  if (spec.as_one && spec.kind != CollectiveKind::Reducescatter) {
    return concat("only reducescatter can divide all tensors as one; this is ",
                  to_string(spec.kind));
  }
  return "";
}

// The sum of splits, none of which is negative; nullopt if it overflows.
std::optional<int64_t> sum_of(std::span<const int64_t> splits) {
  int64_t sum = 0;
  for (const int64_t split : splits) {
    if (split > std::numeric_limits<int64_t>::max() - sum) return std::nullopt;
    sum += split;
  }
  return sum;
}

// One list of splits against the rows that it divides.
std::string fault_of_splits(std::span<const int64_t> splits, int64_t rows, size_t members) {
  if (splits.size() != members) {
    return concat(splits.size(), " splits for ", members, " ranks; give one for each rank");
  }
  if (std::any_of(splits.begin(), splits.end(), [](int64_t split) { return split < 0; })) {
    return concat("a split is negative in ", shape_text(splits));
  }
  const std::optional<int64_t> sum = sum_of(splits);
  if (sum != rows) {
    return concat("the splits ", shape_text(splits), " add up to ",
                  sum ? std::to_string(*sum) : "more than 2^63 - 1",
                  ", but the first dimension is ", rows);
  }
  return "";
}

std::string fault_of_output_blocks(const Submission& submission, int rank, size_t members) {
  const EntrySpec& spec = *submission.spec;
  const bool takes_blocks = spec.kind == CollectiveKind::Allgather ||
                            spec.kind == CollectiveKind::Alltoall ||
                            (spec.kind == CollectiveKind::Gather && spec.root == rank);
  const bool on_host = spec.device == DeviceKind::Host && !submission.copied_to_host;
  if (!takes_blocks || spec.parts.size() != 1 || !on_host) {
    return concat("the result of ", to_string(spec.kind), " on this rank can't go into blocks");
  }
  const size_t blocks = submission.output_blocks.size();
  if (blocks == members) return "";
  return concat("it has ", blocks, " output blocks for ", members,
                " ranks; give one for each rank");
}

std::string fault_of_rows(const Submission& submission, int rank, std::span<const int> ranks) {
  const EntrySpec& spec = *submission.spec;
  const size_t members = ranks.size();
  if (spec.as_one) {
    if (submission.allocate_output == nullptr || submission.memory.size() != 1) {
      return "it needs one piece of memory for all tensors and an allocator for the result";
    }
    return fault_of_splits(spec.splits, element_count(spec), members);
  }
  const bool divides = spec.kind == CollectiveKind::Alltoall ||
                       (spec.kind == CollectiveKind::Scatter && spec.root == rank);
  if (submission.splits.size() != (divides ? members * spec.parts.size() : 0) && !divides) {
    return concat(to_string(spec.kind), " takes no splits on this rank; give none");
  }
  for (size_t part = 0; part < spec.parts.size(); ++part) {
    const int64_t rows = spec.parts[part].shape.front();
    if (spec.kind == CollectiveKind::Reducescatter && !spec.splits.empty()) {
      if (std::string fault = fault_of_splits(spec.splits, rows, members); !fault.empty()) {
        return fault;
      }
    }
    if (!divides) continue;
    const std::span<const int64_t> all(submission.splits);
    const bool fits = all.size() == members * spec.parts.size();
    const auto own = fits ? all.subspan(part * members, members) : all;
    if (std::string fault = fault_of_splits(own, rows, members); !fault.empty()) return fault;
  }
  if (submission.allocate_output == nullptr || submission.memory.size() != spec.parts.size()) {
    return "it needs one piece of memory for each tensor and an allocator for the results";
  }
  return submission.output_blocks.empty() ? "" : fault_of_output_blocks(submission, rank, members);
}

std::string fault_of_capture(const Submission& submission) {
  const EntrySpec& spec = *submission.spec;
  if (!spec.captured) return "";
  if (submission.copied_to_host) {
    return "a CUDA graph can't hold it, since some ranks of the process set have no GPU; call it "
           "outside the capture";
  }
  if (is_pair_set(submission.set)) {
    return "a CUDA graph can't hold messages between two ranks, which go through the host; send "
           "and receive outside the capture";
  }
  if (spec.device != DeviceKind::Host && spec.kind != CollectiveKind::Barrier) return "";
  return concat(to_string(spec.kind), " in ", to_string(spec.device),
                " memory can't be captured in a CUDA graph");
}

std::string fault_of_device(const Submission& submission, int rank, const RankDevices& devices) {
  const bool copied = submission.copied_to_host;
  const DeviceKind kind = copied ? DeviceKind::Cuda : submission.spec->device;
  const auto& [index, unavailable, mixed] = devices[static_cast<size_t>(kind)];
  if (copied && submission.spec->device != DeviceKind::Host) {
    return "its memory is copied to the host, and its spec does not say so";
  }
  if (copied && !mixed) {
    return "its memory is copied to the host, which is for sets of ranks with and without a GPU";
  }
  if (mixed && !copied) {
    return concat("it is in ", to_string(kind), " memory, and some ranks of the set have no GPU: ",
                  "its spec must say Host, and the submission that it is copied to the host");
  }
  if (index == kNoDevice) {
    const std::string memory = concat("it is in ", to_string(kind), " memory, which ");
    if (mixed) return concat(memory, "rank ", rank, " can't use; move it to the host");
    if (unavailable.empty()) {
      return concat(memory,
                    "this job can't use (this build has no support for it); move it to the host");
    }
    const std::string who = submission.set == kWorldSet   ? "collectives of all ranks"
                            : is_pair_set(submission.set) ? "messages between ranks"
                                                          : set_text(submission.set);
    return concat(memory, who, " can't use (", unavailable, "); move it to the host");
  }
  if (index == submission.device_index) return "";
  return concat("it is on ", to_string(kind), ":", submission.device_index, ", but rank ", rank,
                " works on ", to_string(kind), ":", index, "; move it there");
}

std::string fault_of_set(uint32_t set, const EntrySpec& spec) {
  if (!is_pair_set(set)) return "";
  if (spec.kind == CollectiveKind::Broadcast) return "";
  return concat("a pair of ranks sends and receives by broadcasts; this is ", to_string(spec.kind));
}

// Asks with the facts that describe_batch() will give the batch.
std::string fault_of_ops(const EntrySpec& spec, const RunnableCalls& runnable) {
  BatchFacts facts;
  facts.kind = spec.kind;
  facts.dtype = type_in_batch(spec);
  facts.reduce_op = spec.reduce_op;
  facts.device = spec.device;
  facts.count = element_count(spec);
  facts.captured = spec.captured;
  return runnable.fault(facts);
}

}  // namespace

std::string find_fault(const Submission& submission, int rank, std::span<const int> ranks,
                       const RankDevices& devices, const RunnableCalls& runnable) {
  if (submission.spec == nullptr) return "it has no spec";
  const EntrySpec& spec = *submission.spec;
  if (submission.name.empty()) return "the name is empty";
  if (submission.name.size() > kNameBytesMax) {
    return concat("the name has ", submission.name.size(), " bytes; the limit is ", kNameBytesMax);
  }
  if (spec.parts.size() > kPartsMax) {
    return concat("it has ", spec.parts.size(), " parts; the limit is ", kPartsMax);
  }
  if (submission.narrowed && !is_16_bit(spec.compression)) {
    return "its memory is narrowed, and it has no compression to 16 bits";
  }
  if (submission.narrowed && (spec.device != DeviceKind::Host || submission.copied_to_host)) {
    return "its memory is narrowed, which on devices the runtime does";
  }
  if (moves_blocks(spec.kind) && spec.parts.empty()) return "it has no tensors";
  if (std::string fault = fault_of_spec(spec, ranks); !fault.empty()) return fault;
  if (std::string fault = fault_of_capture(submission); !fault.empty()) return fault;
  if (std::string fault = fault_of_set(submission.set, spec); !fault.empty()) return fault;
  if (std::string fault = fault_of_device(submission, rank, devices); !fault.empty()) return fault;
  if (std::string fault = fault_of_ops(spec, runnable); !fault.empty()) return fault;
  if (!submission.absent.empty() && submission.absent.size() != spec.parts.size()) {
    return "the absent flags do not fit the parts";
  }
  if (moves_blocks(spec.kind)) {
    if (std::string fault = fault_of_rows(submission, rank, ranks); !fault.empty()) return fault;
  }
  int64_t count = 0;
  for (const MemoryPart& part : submission.memory) count += part.count;
  if (count != element_count(spec)) {
    return concat("its memory holds ", count, " elements, its shapes say ", element_count(spec));
  }
  return "";
}

}  // namespace horon::core
