#include "horon/torch_bindings/collectives/pending_collective.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_as_complex.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/execution/block_layout.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/tensors/finite.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::torch_detail {
namespace {

using core::concat;

constexpr std::align_val_t kAlignment{64};

std::shared_ptr<std::byte> allocate_bytes(size_t bytes) {
  const auto free = [](std::byte* memory) { ::operator delete(memory, kAlignment); };
  return {static_cast<std::byte*>(::operator new(bytes, kAlignment)), free};
}

// Autograd does not see what the runtime writes, and must refuse a graph that has saved this
// tensor.
void mark_written(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

bool is_row_major(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj();
}

}  // namespace

PendingCollective::PendingCollective(CollectiveKind kind, std::string_view kind_name,
                                     const std::string& given_name, const ProcessSet& process_set,
                                     bool grouped)
    : name(given_or_counted(given_name, kind_name, process_set.id())),
      process_set_(process_set),
      grouped_(grouped) {
  spec.kind = kind;
  if (!process_set.includes_me()) {
    throw Error(ErrorCode::InvalidArgument, concat("tensor \"", name, "\": rank ", horon::rank(),
                                                   " is not in this process set, whose ranks are ",
                                                   core::list_ranks(process_set.ranks())));
  }
}

void PendingCollective::refuse(const Error& error) const {
  if (is_initialized()) ops::runtime().refuse(name, error.what(), process_set_.id());
  throw Error(error);
}

void PendingCollective::set_root(int root) {
  spec.root = root;
  const std::vector<int> ranks = process_set_.ranks();
  if (std::find(ranks.begin(), ranks.end(), root) != ranks.end()) return;
  refuse(Error(ErrorCode::InvalidArgument,
               concat("tensor \"", name, "\": root ", root, " is not in the process set, whose ",
                      "ranks are ", core::list_ranks(ranks))));
}

std::vector<int64_t> PendingCollective::equal_splits(const at::Tensor& tensor) const {
  if (!tensor.defined() || tensor.dim() == 0) return {};  // refused for that
  const int members = process_set_.size();
  if (tensor.size(0) % members != 0) {
    refuse(Error(ErrorCode::InvalidArgument,
                 concat("tensor \"", name, "\": its first dimension, ", tensor.size(0),
                        ", can't be divided by the ", members, " ranks; give splits")));
  }
  return core::even_splits(tensor.size(0), members);
}

std::vector<int64_t> PendingCollective::even_splits(const at::Tensor& tensor) const {
  if (!tensor.defined() || tensor.dim() == 0) return {};  // refused for that
  return core::even_splits(tensor.size(0), process_set_.size());
}

std::string PendingCollective::part_name(const at::Tensor& tensor) const {
  const std::string own = grouped_ ? concat(name, ".", parts_.size()) : name;
  return concat(own, tensor.is_complex() ? " (complex)" : "",
                remark.empty() ? "" : concat(" (", remark, ")"));
}

void PendingCollective::check(const at::Tensor& tensor, Place place) {
  try {
    const at::Tensor real = real_view(tensor);
    place == Place::Same ? check_writable(real, name) : check_tensor(real, name);
    const DataType dtype = data_type_of(real, name);
    if (!parts_.empty() && dtype != spec.dtype) {
      throw Error(ErrorCode::InvalidArgument,
                  concat("tensor \"", name, "\": tensor ", parts_.size(), " of the group is ",
                         to_string(dtype), ", the first is ", to_string(spec.dtype),
                         "; the tensors of a group have one dtype"));
    }
    spec.dtype = dtype;
    check_reduction(tensor);
  } catch (const Error& error) {
    refuse(error);
  }
}

void PendingCollective::check_reduction(const at::Tensor& tensor) const {
  if (!core::reduces(spec.kind)) return;
  const auto fail = [&](std::string_view why) {
    throw Error(ErrorCode::InvalidArgument, concat("tensor \"", name, "\": ", why));
  };
  if (spec.dtype == DataType::Bool && spec.reduce_op == ReduceOp::Average) {
    fail("is bool, which has no average; use Min (all), Max (any) or another dtype");
  }
  const bool linear = spec.reduce_op == ReduceOp::Sum || spec.reduce_op == ReduceOp::Average;
  if (tensor.is_complex() && !linear) {
    fail(concat("is complex, which has no ", to_string(spec.reduce_op), "; use Sum or Average"));
  }
  if (!std::isfinite(spec.prescale) || !std::isfinite(spec.postscale)) {
    fail("prescale and postscale must be finite");
  }
  if (!is_floating(spec.dtype) && (spec.prescale != 1.0 || spec.postscale != 1.0)) {
    fail(concat("is ", to_string(spec.dtype), "; prescale and postscale need a floating type"));
  }
  if (ops::runtime().config().check_finite && is_floating(spec.dtype) &&
      !all_finite(real_view(tensor))) {
    throw not_finite(concat("tensor \"", name, "\""), real_view(tensor),
                     "HORON_CHECK_FINITE asks for finite values");
  }
}

void PendingCollective::add(const at::Tensor& tensor, Place place) {
  check(tensor, place);
  Part part;
  part.complex = tensor.is_complex();
  const at::Tensor real = real_view(tensor);
  part.input = row_major(real);
  if (place == Place::Same) {
    part.output = part.input;
    if (!is_row_major(tensor)) part.target = tensor.detach();
    part.result = tensor;
    mark_written(tensor);
  } else if (spec.kind == CollectiveKind::Broadcast) {
    // In place on the result, which on the root begins as a copy of the input.
    at::Tensor result = row_major_like(real).detach();
    if (spec.root == horon::rank()) result.copy_(real);
    part.input = part.output = std::move(result);
  } else {
    part.output = row_major_like(part.input);
  }
  if (!part.result.defined()) {
    part.result = part.complex ? at::view_as_complex(part.output) : part.output;
  }
  spec.parts.push_back({part_name(tensor), real.sizes().vec()});
  parts_.push_back(std::move(part));
}

void PendingCollective::add_rows(const at::Tensor& tensor, const std::vector<int64_t>& splits) {
  check(tensor, Place::New);
  Part part;
  part.complex = tensor.is_complex();
  const bool gathers =
      spec.kind == CollectiveKind::Allgather || spec.kind == CollectiveKind::Gather;
  at::Tensor rows = real_view(tensor.dim() == 0 && gathers ? tensor.reshape({1}) : tensor);
  if (tensor.dim() == 0 && !gathers) {
    refuse(Error(ErrorCode::InvalidArgument,
                 concat("tensor \"", name, "\": is a scalar; ", to_string(spec.kind),
                        " divides the first dimension, so give at least one")));
  }
  part.row_shape = rows.sizes().slice(1).vec();
  std::string shown = part_name(tensor);
  core::TensorPart said{shown, rows.sizes().vec()};
  if (core::element_count(part.row_shape) == 0) {
    // The number of rows can't be seen from their bytes if a row has no elements. So one element
    // stands for each row, and the shape of a row is part of the name that the ranks compare.
    part.hollow = true;
    said = {concat(shown, " (rows of shape ", core::shape_text(part.row_shape), ")"),
            {rows.size(0)}};
    rows = rows.new_zeros({rows.size(0)});
  }
  part.input = row_major(rows);
  spec.parts.push_back(std::move(said));
  splits_.insert(splits_.end(), splits.begin(), splits.end());
  parts_.push_back(std::move(part));
}

core::Submission PendingCollective::submission(const std::shared_ptr<PendingCollective>& self) {
  ops::runtime().release_finished();
  core::Submission submission;
  submission.set = process_set_.id();
  submission.name = name;
  for (const Part& part : parts_) submission.memory.push_back(make_part(part.input, part.output));
  if (core::moves_blocks(spec.kind)) {
    submission.splits = splits_;
    // The runtime lets go of this function when it lets go of the pending collective, so a plain
    // pointer is enough.
    submission.allocate_output = [this, element_bytes = size_of(spec.dtype)](size_t part,
                                                                             int64_t elements) {
      parts_[part].bytes = allocate_bytes(static_cast<size_t>(elements) * element_bytes);
      parts_[part].elements = elements;
      return parts_[part].bytes.get();
    };
  }
  submission.spec = std::make_shared<const core::EntrySpec>(spec);
  submission.keep_alive = self;
  return submission;
}

void PendingCollective::submit(const std::shared_ptr<PendingCollective>& self) {
  state_ = ops::runtime().submit(submission(self));
}

void PendingCollective::run(const std::shared_ptr<PendingCollective>& self) {
  state_ = ops::runtime().run(submission(self));
}

void PendingCollective::wait(std::chrono::nanoseconds timeout) const {
  if (state_->wait(timeout)) return;
  const std::string stalled = is_initialized() ? ops::runtime().stall_report() : "";
  throw Error(ErrorCode::Timeout, concat("tensor \"", name, "\" has not come within ",
                                         std::chrono::duration<double>(timeout).count(),
                                         " s; the collective goes on and may be waited for again",
                                         stalled.empty() ? "" : ". Known so far: ", stalled));
}

const std::vector<at::Tensor>& PendingCollective::results() {
  (void)state_->get();
  std::call_once(settled_, [this] { settle(); });
  return results_;
}

void PendingCollective::settle() {
  for (Part& part : parts_) {
    if (core::moves_blocks(spec.kind)) settle_rows(part);
    if (part.target.defined()) {
      part.target.copy_(part.complex ? at::view_as_complex(part.output) : part.output);
    }
    results_.push_back(part.result);
  }
}

void PendingCollective::settle_rows(Part& part) {
  const int64_t row = part.hollow ? 1 : core::element_count(part.row_shape);
  std::vector<int64_t> shape = part.row_shape;
  shape.insert(shape.begin(), part.elements / row);
  at::Tensor rows;
  if (part.bytes == nullptr || part.hollow) {
    rows = at::empty(shape, part.input.options());
  } else {
    rows = at::from_blob(
        part.bytes.get(), shape, [memory = part.bytes](void*) {}, part.input.options());
  }
  part.result = part.complex ? at::view_as_complex(rows) : rows;
  part.bytes.reset();
}

std::vector<std::vector<int64_t>> PendingCollective::received_rows() const {
  const std::vector<int64_t>& received = state_->outcome().received;
  const size_t sources = parts_.empty() ? 0 : received.size() / parts_.size();
  std::vector<std::vector<int64_t>> rows;
  for (size_t part = 0; part < parts_.size(); ++part) {
    const int64_t row = parts_[part].hollow ? 1 : core::element_count(parts_[part].row_shape);
    std::vector<int64_t>& of_part = rows.emplace_back();
    for (size_t source = 0; source < sources; ++source) {
      of_part.push_back(received[part * sources + source] / row);
    }
  }
  return rows;
}

}  // namespace horon::torch_detail
