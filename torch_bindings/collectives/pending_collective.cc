#include "horon/torch_bindings/collectives/pending_collective.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/base/wait_check.h"
#include "horon/core/execution/block_layout.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/known_calls.h"
#include "horon/torch_bindings/collectives/names_in_flight.h"
#include "horon/torch_bindings/collectives/result_memory.h"
#include "horon/torch_bindings/tensors/stream_order.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::torch_detail {
namespace {

using core::concat;

}  // namespace

PendingCollective::PendingCollective(CollectiveKind kind, std::string_view kind_name,
                                     const std::string& given_name, const ProcessSet& process_set,
                                     bool grouped)
    : name(given_or_counted(given_name, kind_name, process_set.id())),
      process_set_(process_set),
      has_given_name_(!given_name.empty()),
      grouped_(grouped) {
  spec.kind = kind;
  if (!process_set.includes_me()) {
    throw Error(ErrorCode::InvalidArgument, concat("tensor \"", name, "\": rank ", horon::rank(),
                                                   " is not in this process set, whose ranks are ",
                                                   core::list_ranks(process_set.ranks())));
  }
}

void PendingCollective::refuse(const Error& error) const {
  if (concerns_others && is_initialized())
    ops::runtime().refuse(name, error.what(), process_set_.id());
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
                        ", is not divisible by the ", members, " ranks; give splits")));
  }
  return core::even_splits(tensor.size(0), members);
}

std::vector<int64_t> PendingCollective::even_splits(const at::Tensor& tensor) const {
  if (!tensor.defined() || tensor.dim() == 0) return {};  // refused for that
  return core::even_splits(tensor.size(0), process_set_.size());
}

void PendingCollective::reserve(size_t parts) {
  parts_.reserve(parts);
  memory_.reserve(parts);
}

// A result that nobody reads gets reused memory: fresh pages may cost more than a reduction.
at::Tensor PendingCollective::new_output(const at::Tensor& real, Into into) const {
  if (into != Into::Nowhere || !device_.is_cpu()) return row_major_like(real);
  return tensor_in(allocate_reused_bytes(real.nbytes()), real.sizes(), real.options());
}

void PendingCollective::add(const at::Tensor& tensor, Into into) {
  check(tensor, into);
  or_refuse([&] { add_checked(tensor, into); });
}

// Whether the tensor itself changes: the root of a broadcast has its result already.
bool PendingCollective::writes(Into into) const {
  const bool has_result = spec.kind == CollectiveKind::Broadcast && spec.root == horon::rank();
  return into == Into::Same && !has_result;
}

void PendingCollective::add_checked(const at::Tensor& tensor, Into into) {
  Part& part = parts_.emplace_back();
  part.disguised = type_in_disguise(tensor);
  const bool as_it_is = travels_as_it_is(tensor);
  const at::Tensor view = as_it_is ? at::Tensor() : real_view(tensor);
  const at::Tensor& real = as_it_is ? tensor : view;
  part.shape = shapes_may_differ ? at::DimVector{real.numel()} : at::DimVector(real.sizes());
  const bool in_place_on_result = spec.kind == CollectiveKind::Broadcast && into == Into::New;
  const bool has_other_output =
      into == Into::New || (into == Into::Nowhere && spec.kind == CollectiveKind::Allreduce);
  if (has_other_output) {
    part.output = new_output(real, into);
    part.result = into == Into::Nowhere ? tensor : undisguised(part.output, part.disguised);
  } else if (into == Into::Same) {
    if (!as_it_is) part.output = row_major(real);
    part.result = tensor;
    if (writes(into)) {
      if (!is_row_major(tensor)) part.target = tensor.detach();
      mark_written(tensor);
    }
  } else {
    part.output = as_it_is ? tensor : row_major(real);
    part.result = tensor;
  }
  if (in_place_on_result && spec.root == horon::rank()) {
    part.output.copy_(as_it_is ? real_view(tensor) : real);
  }
  if (!has_other_output || in_place_on_result) {
    const at::Tensor& memory = part.output.defined() ? part.output : part.result;
    part.input = memory.storage();
    memory_.push_back(make_part(memory, memory));
  } else {
    const at::Tensor input = as_it_is ? tensor : row_major(real);
    part.input = input.storage();
    memory_.push_back(make_part(input, part.output));
    memory_.back().wants_output = into != Into::Nowhere;
  }
}

std::string PendingCollective::part_name(size_t index) const {
  const Part& part = parts_[index];
  std::string own = grouped_ ? concat(name, ".", index) : name;
  if (part.disguised) {
    own += c10::isComplexType(*part.disguised) ? " (complex)" : concat(" (", *part.disguised, ")");
  }
  if (!remark.empty()) own += concat(" (", remark, ")");
  if (part.rows_are_empty) own += concat(" (rows of shape ", core::shape_text(part.row_shape), ")");
  return own;
}

// Whether the names of the parts hold nothing but their numbers.
bool PendingCollective::is_plain() const {
  return remark.empty() && std::none_of(parts_.begin(), parts_.end(), [](const Part& part) {
           return part.disguised || part.rows_are_empty;
         });
}

std::shared_ptr<const core::EntrySpec> PendingCollective::agreed_spec() {
  const bool plain = is_plain();
  const uint32_t set = process_set_.id();
  if (plain) {
    const std::shared_ptr<const KnownCall> known = known_calls().find(set, name);
    const auto same_shape = [](const core::TensorPart& before, const Part& now) {
      return at::IntArrayRef(before.shape) == at::IntArrayRef(now.shape);
    };
    if (known != nullptr && known->grouped == grouped_ && known->call == spec &&
        std::equal(known->spec->parts.begin(), known->spec->parts.end(), parts_.begin(),
                   parts_.end(), same_shape)) {
      return known->spec;
    }
  }
  auto whole = std::make_shared<core::EntrySpec>(spec);
  whole->parts.reserve(parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    const at::DimVector& shape = parts_[i].shape;
    whole->parts.push_back({part_name(i), {shape.begin(), shape.end()}});
  }
  if (plain) {
    known_calls().note(set, name,
                       std::make_shared<const KnownCall>(KnownCall{spec, grouped_, whole}));
  }
  return whole;
}

core::Submission PendingCollective::submission(const std::shared_ptr<PendingCollective>& self) {
  ops::runtime().release_finished();
  core::Submission submission;
  submission.set = process_set_.id();
  submission.name = name;
  submission.memory = std::move(memory_);
  if (core::moves_blocks(spec.kind)) {
    submission.splits = splits_;
    submission.output_blocks = std::move(output_blocks_);
    // The runtime lets go of this function when it lets go of the pending collective, so a plain
    // pointer is enough.
    submission.allocate_output = [this](size_t part, int64_t elements, core::MemoryQueue& queue) {
      return allocate_rows(parts_[part], elements, queue);
    };
  }
  if (!device_.is_cpu()) {
    stream_ = current_stream(device_);
    spec.captured = current_stream_is_captured(device_);
    try {
      submission.ready = record_current_stream(device_);
    } catch (...) {  // LibTorch's own errors
      refuse(core::current_error());
    }
  }
  submission.spec = agreed_spec();
  note_device(submission, device_);
  submission.keep_alive = self;
  return submission;
}

void PendingCollective::submit(const std::shared_ptr<PendingCollective>& self) {
  core::Submission begun = submission(self);  // first: without a session there are no names either
  const std::shared_ptr<NamedCall> call(self, &named_);
  if (has_given_name_) {
    names_in_flight().take(process_set_.id(), name, call);
  } else {
    names_in_flight().take_in_turn(process_set_.id(), name, call);
  }
  state_ = ops::runtime().submit(std::move(begun));
  named_.handle.store(state_.get(), std::memory_order_release);
}

void PendingCollective::submit_in_turn(const std::shared_ptr<PendingCollective>& self,
                                       Wakes wakes) {
  core::Submission begun = submission(self);
  runtime_ = &ops::runtime();
  state_ = wakes == Wakes::Nobody ? runtime_->submit_quietly(std::move(begun))
                                  : runtime_->submit(std::move(begun));
}

void PendingCollective::submit(const std::shared_ptr<PendingCollective>& self,
                               std::shared_ptr<core::OpenReceive> receive) {
  core::Submission begun = submission(self);
  runtime_ = &ops::runtime();
  state_ = runtime_->submit(std::move(receive), std::move(begun));
}

void PendingCollective::run(const std::shared_ptr<PendingCollective>& self) {
  state_ = ops::runtime().run(submission(self));
}

void PendingCollective::wait(std::chrono::nanoseconds timeout) const {
  const auto ends = [this](std::chrono::nanoseconds limit) { return state_->wait(limit); };
  if (core::wait_and_check(timeout, ends)) return;
  const std::string stalled = is_initialized() ? ops::runtime().stall_report() : "";
  throw Error(ErrorCode::Timeout,
              concat("tensor \"", name, "\" has not come within ",
                     std::chrono::duration<double>(timeout).count(),
                     " s; the collective goes on, and you may wait for it again",
                     stalled.empty() ? "" : ". Known so far: ", stalled));
}

const std::vector<at::Tensor>& PendingCollective::results() {
  (void)outcome_in_order(*state_, device_);
  std::call_once(settled_, [this] { settle(); });
  if (copied_ != nullptr) let_current_stream_wait(device_, copied_.get());
  // The tensors that the first wait() has made belong to the stream that was current in it.
  if (stream_ && (copied_ != nullptr || *stream_ != current_stream(device_))) {
    for (const at::Tensor& result : results_) note_current_stream(result);
    for (const Part& part : parts_) {
      if (part.target.defined()) note_current_stream(part.output);  // the copy reads it
      if (!spec.captured) continue;
      // Nothing else holds these until the graph's collective has come to its end.
      if (part.output.defined()) note_current_stream(part.output);
      if (part.input) note_current_stream(part.input.data_ptr(), device_);
    }
  }
  return results_;
}

bool PendingCollective::copies_back() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.target.defined(); });
}

void PendingCollective::settle() {
  bool copies = false;
  for (Part& part : parts_) {
    if (core::moves_blocks(spec.kind)) settle_rows(part);
    if (part.target.defined()) {
      part.target.copy_(undisguised(part.output, part.disguised));
    }
    copies = copies || narrows_rows() || part.target.defined();
  }
  if (copies) copied_ = record_current_stream(device_);
  // Last: where there was no memory for a copy, the next wait() begins again.
  results_.reserve(parts_.size());
  for (Part& part : parts_) results_.push_back(std::move(part.result));
}

}  // namespace horon::torch_detail
