// Tensors of a pending collective whose result differs from them in the number of rows.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/accumulate.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/execution/memory_queue.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/pending_collective.h"
#include "horon/torch_bindings/collectives/result_memory.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/stream_order.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::torch_detail {

using core::concat;

namespace {

// Of row-major tensors. Two storages may lie over the same memory: those of two views that NumPy
// has made, say. And a copy-on-write storage moves as a whole when it is written.
bool share_memory(const at::Tensor& one, const at::Tensor& other) {
  const auto* const begin = static_cast<const std::byte*>(one.const_data_ptr());
  const auto* const from = static_cast<const std::byte*>(other.const_data_ptr());
  const std::less<> lies_before;
  const bool overlap =
      lies_before(begin, from + other.nbytes()) && lies_before(from, begin + one.nbytes());
  return overlap || one.is_alias_of(other);
}

// Of this rank's share of a tensor that is scattered, which is known at the call. 0 also for splits
// that do not fit, which are refused later.
int64_t elements_of_share(const core::EntrySpec& spec, at::IntArrayRef shape,
                          const ProcessSet& set) {
  const std::vector<int64_t> splits =
      spec.splits.empty() ? core::even_splits(shape.front(), set.size()) : spec.splits;
  const auto place = static_cast<size_t>(set.rank());
  const int64_t rows = place < splits.size() ? splits[place] : 0;
  return rows > 0 && rows <= shape.front() ? rows * c10::multiply_integers(shape.slice(1)) : 0;
}

}  // namespace

void PendingCollective::add_rows(const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                 const at::Tensor& output) {
  check(tensor, Into::New);
  or_refuse([&] { add_checked_rows(tensor, splits, output); });
}

void PendingCollective::add_checked_rows(const at::Tensor& tensor,
                                         const std::vector<int64_t>& splits,
                                         const at::Tensor& output) {
  const bool gathers =
      spec.kind == CollectiveKind::Allgather || spec.kind == CollectiveKind::Gather;
  if (tensor.dim() == 0 && !gathers) {
    refuse(Error(ErrorCode::InvalidArgument,
                 concat("tensor \"", name, "\": is a scalar, but ", to_string(spec.kind),
                        " splits the first dimension; give it at least one dimension")));
  }
  Part& part = parts_.emplace_back();
  part.disguised = type_in_disguise(tensor);
  at::Tensor rows = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
  if (spec.kind == CollectiveKind::Scatter && spec.root != horon::rank())
    rows = rows.slice(0, 0, 0);
  if (!travels_as_it_is(rows)) rows = row_major(real_view(rows));
  part.row_shape = rows.sizes().slice(1);
  part.shape = rows.sizes();
  part.options = rows.options();
  if (c10::multiply_integers(part.row_shape) == 0) {
    // The number of rows can't be seen from their bytes if a row has no elements. So one element
    // stands for each row, and the shape of a row is part of the name that the ranks compare.
    part.rows_are_empty = true;
    part.shape = at::DimVector{rows.size(0)};
    rows = rows.new_zeros({rows.size(0)});
  }
  part.input = rows.storage();
  if (output.defined()) {
    check_output(part, rows, output);
    if (share_memory(output, rows)) {
      rows = rows.clone();
      part.input = rows.storage();
    }
    part.result = output;
    if (narrows_rows()) part.target = output.detach();
    part.given = part.disguised ? real_view(output) : output;
    mark_written(output);
  }
  if (narrows_rows()) narrow(part, rows);
  const bool needs_memory = !part.given.defined() || narrows_rows();
  if (spec.kind == CollectiveKind::Reducescatter && needs_memory && !device_.is_cpu()) {
    // Before the event that the collective waits for: it then waits for no later work of the stream
    // (allocate_rows()).
    const PlainMode plain;
    const int64_t elements = elements_of_share(spec, part.shape, process_set_);
    if (elements > 0) part.flat = at::empty({elements}, part.options);
  }
  memory_.push_back(make_part(rows, {}));
  splits_.insert(splits_.end(), splits.begin(), splits.end());
}

void PendingCollective::narrow(Part& part, at::Tensor& rows) {
  const PlainMode plain;
  if (memory_.empty()) {  // the first part
    prescale_ = std::exchange(spec.prescale, 1.0);
    postscale_ = std::exchange(spec.postscale, 1.0);
    remark = concat("float32 as ", to_string(row_compression));
    if (prescale_ != 1 || postscale_ != 1) {
      remark += concat(", prescale ", core::real_text(prescale_), ", postscale ",
                       core::real_text(postscale_));
    }
  }
  rows = (prescale_ == 1 ? rows : rows.mul(prescale_)).to(scalar_type_of(spec.dtype));
  part.input = rows.storage();
  part.options = rows.options();
}

at::Tensor PendingCollective::widened(const at::Tensor& rows) const {
  const PlainMode plain;
  if (stream_ && *stream_ != current_stream(device_)) note_current_stream(rows);
  at::Tensor wide = rows.to(at::kFloat);
  return postscale_ == 1 ? wide : wide.mul_(postscale_);
}

void PendingCollective::add_rows_apart(const at::Tensor& rows, const std::vector<int64_t>& splits,
                                       const std::vector<at::Tensor>& outputs) {
  // First: mutable_data_ptr() moves copy-on-write memory, perhaps the input's too.
  for (const at::Tensor& output : outputs) {
    output_blocks_.push_back({static_cast<std::byte*>(output.mutable_data_ptr()), output.numel()});
  }
  add_rows(rows, splits);
  HORON_CHECK(parts_.size() == 1 && rows.dim() == 1 && !parts_.back().disguised,
              "blocks that lie apart are of the elements of one tensor");
  outputs_apart_ = outputs;
  for (const at::Tensor& output : outputs) mark_written(output);
}

// As a reducescatter that gives all elements to the root.
void PendingCollective::add_reduced(const at::Tensor& tensor, Into into) {
  const bool is_root = spec.root == horon::rank();
  check(tensor, is_root ? into : Into::Nowhere);
  at::Tensor real;
  or_refuse([&] { real = row_major(real_view(tensor)); });
  remark = concat("shape ", core::shape_text(tensor.sizes()));
  spec.splits.assign(static_cast<size_t>(process_set_.size()), 0);
  const std::vector<int> ranks = process_set_.ranks();
  const auto root = std::find(ranks.begin(), ranks.end(), spec.root) - ranks.begin();
  spec.splits[static_cast<size_t>(root)] = real.numel();
  or_refuse([&] { add_checked_rows(real.view({real.numel()}), {}, {}); });
  Part& part = parts_.back();
  part.disguised = type_in_disguise(tensor);
  part.whole = is_root ? at::DimVector(real.sizes()) : at::DimVector{0};
  if (tensor.is_complex() && !is_root) part.whole->push_back(2);
  if (into != Into::Same) return;
  part.result = tensor;
  if (!is_root) return;
  part.target = tensor.detach();
  mark_written(tensor);
}

// On a thread of the runtime. GPU memory is allocated for the caller's stream, as if at the call.
// Work that this stream has been given since may still use that memory, so `queue` waits for it.
// Memory that was allocated at the call needs no such wait.
std::byte* PendingCollective::allocate_rows(Part& part, int64_t elements,
                                            core::MemoryQueue& queue) const {
  part.elements = elements;
  if (part.given.defined()) {
    if (const std::string fault = fault_of_given(part); !fault.empty()) {
      throw Error(ErrorCode::InvalidArgument, fault);
    }
    if (part.given.numel() > 0 && !narrows_rows()) {
      return static_cast<std::byte*>(part.given.mutable_data_ptr());
    }
  }
  if (device_.is_cpu()) {
    const size_t bytes = static_cast<size_t>(elements) * size_of(spec.dtype);
    part.bytes = results_are_copied ? allocate_reused_bytes(bytes) : allocate_bytes(bytes);
    return part.bytes.get();
  }
  if (part.flat.defined() && part.flat.numel() == elements) {
    return static_cast<std::byte*>(part.flat.mutable_data_ptr());
  }
  const PlainMode plain;
  const c10::StreamGuard as_caller(*stream_);
  part.flat = at::empty({elements}, part.options);
  const std::unique_ptr<core::Event> unused = record_current_stream(device_);
  HORON_CHECK(queue.wait_for(*unused), "a queue of a GPU waits for events of that GPU");
  return static_cast<std::byte*>(part.flat.mutable_data_ptr());
}

// Else the runtime has asked for memory; only for a result without elements it asks for none.
bool PendingCollective::is_written_apart(const Part& part) const {
  const std::vector<int64_t>& received = state_->outcome().received;
  const bool has_elements =
      std::any_of(received.begin(), received.end(), [](int64_t elements) { return elements > 0; });
  return !outputs_apart_.empty() && part.bytes == nullptr && has_elements;
}

void PendingCollective::settle_rows(Part& part) {
  if (is_written_apart(part)) return;
  if (part.given.defined()) {
    // For a result without elements the runtime has not called allocate_rows(), which checks this
    // too.
    const std::string fault = fault_of_given(part);
    if (!fault.empty()) {
      throw Error(ErrorCode::InvalidArgument, concat("tensor \"", name, "\": ", fault));
    }
    if (!narrows_rows()) return;
  }
  if (part.target.defined() ? part.output.defined() : part.result.defined()) return;
  const int64_t row = part.rows_are_empty ? 1 : c10::multiply_integers(part.row_shape);
  std::vector<int64_t> shape{part.elements / row};
  shape.insert(shape.end(), part.row_shape.begin(), part.row_shape.end());
  if (part.whole) shape.assign(part.whole->begin(), part.whole->end());
  at::Tensor rows;
  if (part.flat.defined() && !part.rows_are_empty) {
    rows = part.flat.view(shape).detach();  // as undisguised()
  } else if (part.bytes == nullptr || part.rows_are_empty) {
    rows = at::empty(shape, part.options);
  } else {
    rows = tensor_in(part.bytes, shape, part.options);
  }
  if (narrows_rows()) rows = widened(rows);
  if (part.target.defined()) {
    part.output = rows;
  } else {
    part.result = undisguised(rows, part.disguised);
  }
  // Last: where there was no memory, the next wait() finds the rows still here.
  part.bytes.reset();
  if (!part.rows_are_empty) part.flat.reset();
}

std::vector<std::vector<int64_t>> PendingCollective::received_rows() const {
  const std::vector<int64_t>& received = state_->outcome().received;
  const size_t sources = parts_.empty() ? 0 : received.size() / parts_.size();
  std::vector<std::vector<int64_t>> rows;
  for (size_t part = 0; part < parts_.size(); ++part) {
    const Part& own = parts_[part];
    const int64_t row = own.rows_are_empty ? 1 : c10::multiply_integers(own.row_shape);
    std::vector<int64_t>& of_part = rows.emplace_back();
    for (size_t source = 0; source < sources; ++source) {
      of_part.push_back(received[part * sources + source] / row);
    }
  }
  return rows;
}

}  // namespace horon::torch_detail
