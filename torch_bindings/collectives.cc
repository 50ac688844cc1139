#include "horon/torch_bindings/collectives.h"

#include <atomic>
#include <cmath>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ops/from_blob.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session.h"
#include "horon/torch_bindings/tensor_memory.h"

namespace horon {
namespace torch_detail {

using core::concat;

// Shared by the handles of one collective and, until it has ended, by the runtime. The runtime
// thread never calls LibTorch: what is left to do on tensors is done by the first wait().
struct PendingCollective {
  std::string name;
  std::shared_ptr<core::HandleState> state;
  at::Tensor input;   // row-major
  at::Tensor output;  // row-major; allgather: made by the first wait()
  at::Tensor target;  // in place on a tensor that is not row-major: takes a copy of the output
  std::shared_ptr<std::byte> gathered;
  int64_t gathered_count = 0;
  std::vector<int64_t> row_shape;  // allgather: the shape of one row
  at::Tensor result;
  std::once_flag settled;

  // The part of the work that is left to the first wait().
  void settle();
};

namespace {

constexpr std::align_val_t kAlignment{64};

std::shared_ptr<std::byte> allocate_bytes(size_t bytes) {
  const auto free = [](std::byte* memory) { ::operator delete(memory, kAlignment); };
  return {static_cast<std::byte*>(::operator new(bytes, kAlignment)), free};
}

std::string name_or_default(const std::string& name, std::string_view kind,
                            std::atomic<uint64_t>& counter) {
  if (!name.empty()) return name;
  return concat(kind, ".noname.", counter.fetch_add(1, std::memory_order_relaxed));
}

// The runtime writes behind autograd's back: a graph that saved this tensor must notice.
void mark_written(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

bool is_row_major(const at::Tensor& tensor) { return tensor.is_contiguous() && !tensor.is_neg(); }

Handle start(std::shared_ptr<PendingCollective> pending, core::EntrySpec spec) {
  core::Submission submission;
  submission.name = pending->name;
  submission.memory = {make_part(pending->input, pending->output)};
  if (spec.kind == CollectiveKind::Allgather) {
    const size_t element_bytes = size_of(spec.dtype);
    // The runtime lets go of this function when it lets go of the pending collective, so a plain
    // pointer is enough.
    submission.allocate_output = [raw = pending.get(), element_bytes](int64_t elements) {
      raw->gathered = allocate_bytes(static_cast<size_t>(elements) * element_bytes);
      raw->gathered_count = elements;
      return raw->gathered.get();
    };
  }
  submission.spec = std::make_shared<const core::EntrySpec>(std::move(spec));
  submission.keep_alive = pending;
  pending->state = core::runtime().submit(std::move(submission));
  return Handle(std::move(pending));
}

// Row-major memory for an in-place call; a stand-in if the tensor is not row-major.
void set_in_place(PendingCollective& pending, const at::Tensor& tensor) {
  pending.input = pending.output = row_major(tensor);
  if (!is_row_major(tensor)) pending.target = tensor.detach();
  pending.result = tensor;
  mark_written(tensor);
}

enum class Place { New, Same };

// A call that is wrong on this rank alone throws here, and fails under its name on the ranks that
// made it rightly, which would wait for this one otherwise.
template <class Check>
void check_for_all(const std::string& name, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    if (is_initialized()) core::runtime().refuse(name, error.what());
    throw;
  }
}

void check_allreduce(const at::Tensor& tensor, const AllreduceOptions& options,
                     const std::string& name) {
  const DataType dtype = data_type_of(tensor, name);
  const auto refuse = [&](std::string_view why) {
    throw Error(ErrorCode::InvalidArgument, concat("tensor \"", name, "\": ", why));
  };
  if (dtype == DataType::Bool && options.op == ReduceOp::Average) {
    refuse("is bool, which has no average; use Min (all), Max (any) or another dtype");
  }
  if (!std::isfinite(options.prescale) || !std::isfinite(options.postscale)) {
    refuse("prescale and postscale must be finite");
  }
  if (!is_floating(dtype) && (options.prescale != 1.0 || options.postscale != 1.0)) {
    refuse(concat("is ", to_string(dtype), "; prescale and postscale need a floating type"));
  }
}

Handle start_allreduce(const at::Tensor& tensor, const AllreduceOptions& options, Place place) {
  static std::atomic<uint64_t> unnamed{0};
  auto pending = std::make_shared<PendingCollective>();
  pending->name = name_or_default(options.name, "allreduce", unnamed);
  check_for_all(pending->name, [&] {
    place == Place::Same ? check_writable(tensor, pending->name)
                         : check_tensor(tensor, pending->name);
    check_allreduce(tensor, options, pending->name);
  });
  core::EntrySpec spec = make_spec(CollectiveKind::Allreduce, tensor, pending->name);
  spec.reduce_op = options.op;
  spec.prescale = options.prescale;
  spec.postscale = options.postscale;
  if (place == Place::Same) {
    set_in_place(*pending, tensor);
  } else {
    pending->input = row_major(tensor);
    pending->output = pending->result = row_major_like(pending->input);
  }
  return start(std::move(pending), std::move(spec));
}

Handle start_broadcast(const at::Tensor& tensor, const BroadcastOptions& options, Place place) {
  static std::atomic<uint64_t> unnamed{0};
  auto pending = std::make_shared<PendingCollective>();
  pending->name = name_or_default(options.name, "broadcast", unnamed);
  check_for_all(pending->name, [&] {
    place == Place::Same ? check_writable(tensor, pending->name)
                         : check_tensor(tensor, pending->name);
    if (options.root < 0 || options.root >= size()) {
      throw Error(ErrorCode::InvalidArgument,
                  concat("tensor \"", pending->name, "\": root ", options.root,
                         " is no rank of 0 .. ", size() - 1));
    }
  });
  core::EntrySpec spec = make_spec(CollectiveKind::Broadcast, tensor, pending->name);
  spec.root = options.root;
  if (place == Place::Same) {
    set_in_place(*pending, tensor);
  } else {
    // In place on the result, which on the root begins as a copy of the input.
    at::Tensor result = row_major_like(tensor).detach();
    if (options.root == rank()) result.copy_(tensor.detach());
    pending->input = pending->output = pending->result = std::move(result);
  }
  return start(std::move(pending), std::move(spec));
}

}  // namespace

void PendingCollective::settle() {
  std::call_once(settled, [this] {
    if (target.defined()) target.copy_(output);
    if (result.defined()) return;
    std::vector<int64_t> shape = row_shape;
    const int64_t row_elements = std::max<int64_t>(1, core::element_count(row_shape));
    shape.insert(shape.begin(), gathered_count / row_elements);
    result = at::from_blob(
        gathered.get(), shape, [memory = gathered](void*) {}, input.options());
    gathered.reset();
  });
}

}  // namespace torch_detail

Handle::Handle(std::shared_ptr<torch_detail::PendingCollective> pending)
    : pending_(std::move(pending)) {}

torch_detail::PendingCollective& Handle::pending() const {
  if (!pending_) throw Error(ErrorCode::InvalidArgument, "this handle belongs to no collective");
  return *pending_;
}

bool Handle::poll() const { return pending().state->finished(); }

at::Tensor Handle::wait() const {
  pending().state->wait(std::nullopt);
  if (const auto& error = pending_->state->outcome().error) throw Error(*error);
  pending_->settle();
  return pending_->result;
}

at::Tensor Handle::wait(std::chrono::nanoseconds timeout) const {
  if (!pending().state->wait(timeout)) {
    const std::string stalled = is_initialized() ? core::runtime().stall_report() : "";
    throw Error(ErrorCode::Timeout,
                core::concat("tensor \"", pending_->name, "\" has not come within ",
                             std::chrono::duration<double>(timeout).count(),
                             " s; the collective goes on and may be waited for again",
                             stalled.empty() ? "" : ". Known so far: ", stalled));
  }
  return wait();
}

at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  return allreduce_async(tensor, options).wait();
}

at::Tensor& allreduce_(at::Tensor& tensor, const AllreduceOptions& options) {
  allreduce_async_(tensor, options).wait();
  return tensor;
}

Handle allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options) {
  return torch_detail::start_allreduce(tensor, options, torch_detail::Place::New);
}

Handle allreduce_async_(const at::Tensor& tensor, const AllreduceOptions& options) {
  return torch_detail::start_allreduce(tensor, options, torch_detail::Place::Same);
}

at::Tensor broadcast(const at::Tensor& tensor, const BroadcastOptions& options) {
  return broadcast_async(tensor, options).wait();
}

at::Tensor& broadcast_(at::Tensor& tensor, const BroadcastOptions& options) {
  broadcast_async_(tensor, options).wait();
  return tensor;
}

Handle broadcast_async(const at::Tensor& tensor, const BroadcastOptions& options) {
  return torch_detail::start_broadcast(tensor, options, torch_detail::Place::New);
}

Handle broadcast_async_(const at::Tensor& tensor, const BroadcastOptions& options) {
  return torch_detail::start_broadcast(tensor, options, torch_detail::Place::Same);
}

at::Tensor allgather(const at::Tensor& tensor, const AllgatherOptions& options) {
  return allgather_async(tensor, options).wait();
}

Handle allgather_async(const at::Tensor& tensor, const AllgatherOptions& options) {
  static std::atomic<uint64_t> unnamed{0};
  using namespace torch_detail;
  auto pending = std::make_shared<PendingCollective>();
  pending->name = name_or_default(options.name, "allgather", unnamed);
  check_for_all(pending->name, [&] { check_tensor(tensor, pending->name); });
  at::Tensor rows = tensor.dim() == 0 ? tensor.reshape({1}) : tensor;
  pending->row_shape = rows.sizes().slice(1).vec();
  core::EntrySpec spec = make_spec(CollectiveKind::Allgather, rows, pending->name);
  if (core::element_count(pending->row_shape) == 0) {
    // Rows without elements say nothing of how many they are. One element stands for each, and what
    // they looked like is part of the name that the ranks compare.
    spec.parts[0] = {
        concat(pending->name, " (rows of shape ", core::shape_text(pending->row_shape), ")"),
        {rows.size(0)}};
    rows = rows.new_zeros({rows.size(0)});
  }
  pending->input = row_major(rows);
  return start(std::move(pending), std::move(spec));
}

}  // namespace horon
