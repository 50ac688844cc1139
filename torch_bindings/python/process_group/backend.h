// Horon as a backend of torch.distributed: init_process_group("horon").
//
// A group is a process set, and each of its calls one collective of it, or a few; messages are
// those of the sets of two ranks. Everything is in terms of PendingCollective: checks, dtypes,
// strides, errors and shared memory are those of horon::allreduce() and its kind. The results
// of those that divide or join lists of tensors are copied once more, into the tensors that the
// caller has given, unless they could be written there at once.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/collectives/message_order.h"
#include "horon/torch_bindings/python/process_group/call_order.h"
#include "horon/torch_bindings/python/process_group/completion_threads.h"
#include "horon/torch_bindings/python/process_group/late_results.h"
#include "horon/torch_bindings/python/process_group/work.h"

namespace horon::python::process_group {

using WorkPtr = c10::intrusive_ptr<::c10d::Work>;
using TensorLists = std::vector<Tensors>;

// What a group tells of itself to those who split it, or make one like it.
struct GroupOptions final : ::c10d::Backend::Options {
  using Options::Options;
};

// How split() makes a group of some members.
struct Parts {
  std::vector<uint64_t> ranks;  // [rank of the group], in the default group of torch
  // Called on a member of the part; `ranks` are ranks of the default group. Null: the group can't
  // be split.
  std::function<c10::intrusive_ptr<::c10d::Backend>(const std::vector<uint64_t>& ranks,
                                                    std::chrono::milliseconds timeout)>
      make;
};

// What only some versions of torch ask of a backend. In a template these override what torch has,
// and are harmless where it has nothing: torch 2.8 knows none of them, gather_single() is of 2.15.
template <class Backend>
class CallsOfSomeVersions : public Backend {
 public:
  using Backend::Backend;
  virtual void setTimeout(std::chrono::milliseconds timeout) = 0;
  virtual void abort() = 0;
  virtual c10::intrusive_ptr<typename Backend::Options> getBackendOptions() = 0;
  virtual c10::intrusive_ptr<Backend> split(
      const c10::intrusive_ptr<::c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<typename Backend::Options>& options) = 0;
  virtual WorkPtr gather_single(at::Tensor& output, at::Tensor& input,  // NOLINT
                                const ::c10d::GatherOptions& options) = 0;
};

// Any thread, without the GIL. Calls throw horon::Error.
class HoronBackend final : public CallsOfSomeVersions<::c10d::Backend> {
 public:
  // Rank and size are those of the set. The groups of all ranks are made by all of them in one
  // order.
  HoronBackend(const ProcessSet& set, std::chrono::milliseconds timeout, Parts parts = {});
  // As shutdown(), which torch does not call where it wraps the backends of a group
  // (TORCH_DISTRIBUTED_DEBUG=DETAIL).
  ~HoronBackend() override;

  const std::string getBackendName() const override { return "horon"; }
  // This rank has no more calls; waits for nobody. What a group of some ranks holds is given back
  // when all its members have called it.
  void shutdown() override;
  // Throws: what other ranks take part in can't be taken back.
  void abort() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}  // counts from 0 on all ranks
  uint64_t getSequenceNumberForGroup() override { return order_.count(); }

  // A copy, which is the caller's to change.
  c10::intrusive_ptr<Options> getBackendOptions() override;
  bool supportsSplitting() const override;
  // On all members; null, at once, on those that are not in `ranks`. The store is not needed. Of
  // `options` the timeout counts.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<::c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override;

  // `index`: -1 for the CPU, else the number of a GPU.
  bool supportsTensorAlloc(c10::DeviceIndex index) override { return index < 0; }
  // Uninitialized. On the CPU in memory that the ranks of the host share and that is reused: a
  // collective takes a copy less. In plain memory if there is none, and on another device.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;  // NOLINT

  WorkPtr allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) override;
  // As allreduce(); float32 tensors travel in this type, as in horon::allreduce(). Not sparse.
  WorkPtr compressed_allreduce(const at::Tensor& tensor, const ::c10d::AllreduceOptions& options,
                               Compression compression);
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const ::c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) override;
  WorkPtr broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) override;
  WorkPtr barrier(const ::c10d::BarrierOptions& options) override;
  // A barrier that waits. Any barrier of Horon that fails names the ranks that did not come.
  void monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_for_all) override;

  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const ::c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const ::c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const ::c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const ::c10d::GatherOptions& options) override;
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input,  // NOLINT
                        const ::c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const ::c10d::ScatterOptions& options) override;

  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const ::c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const ::c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const ::c10d::ReduceScatterOptions& options) override;

  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const ::c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const ::c10d::AllToAllOptions& options) override;

  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 private:
  void leave() noexcept;
  // `options`: of the call.
  template <class CallOptions>
  std::shared_ptr<Operation> operation(::c10d::OpType type, const Tensors& inputs,
                                       const Tensors& outputs, const CallOptions& options) const {
    const bool own = options.timeout > kNoTimeout;
    return std::make_shared<Operation>(
        type, ProfiledCall(type, inputs), outputs, own ? options.timeout : timeout_.load(),
        options.asyncOp ? Operation::Waits::Perhaps : Operation::Waits::AtOnce);
  }
  // `source`: of a recv.
  WorkPtr work(const std::shared_ptr<Operation>& operation,
               const std::shared_ptr<CompletionThreads>& threads, MessageSource source = nullptr);
  WorkPtr work(const std::shared_ptr<Operation>& operation) {
    return work(operation, completions_);
  }
  // A collective for each run of tensors of one dtype: `prepare` sets its options, `add` adds the
  // tensor of an index. If one is refused, those after it are called all the same, since the other
  // ranks count them all.
  void start_runs(Operation& operation, const CallOrder::Start& what, const Tensors& tensors,
                  const std::function<void(torch_detail::PendingCollective&)>& prepare,
                  const std::function<void(torch_detail::PendingCollective&, size_t)>& add);
  size_t members() const { return static_cast<size_t>(getSize()); }
  std::shared_ptr<Operation> message(::c10d::OpType type, const Tensors& tensors) const;
  WorkPtr allreduce_sparse_tensor(const at::Tensor& tensor,
                                  const ::c10d::AllreduceOptions& options);
  int world_rank(int64_t rank_of_group) const;
  int other_member(int64_t rank_of_group, std::string_view call) const;

  const std::string group_;
  const ProcessSet set_;
  std::atomic<std::chrono::milliseconds> timeout_;
  const Parts parts_;
  // The part that split() made last, and what was given then.
  std::vector<int> last_ranks_;
  c10::weak_intrusive_ptr<::c10d::Store> last_store_{c10::intrusive_ptr<::c10d::Store>()};
  c10::weak_intrusive_ptr<Backend> last_part_{c10::intrusive_ptr<Backend>()};
  CallOrder order_;
  torch_detail::MessageOrder messages_;
  const std::shared_ptr<LateResults> late_results_ = std::make_shared<LateResults>();
  // Of collectives and of messages.
  const std::shared_ptr<CompletionThreads> completions_ =
      std::make_shared<CompletionThreads>(CompletionThreads::Ends::InOrder);
  const std::shared_ptr<CompletionThreads> message_completions_ =
      std::make_shared<CompletionThreads>(CompletionThreads::Ends::InAnyOrder);
};

}  // namespace horon::python::process_group
