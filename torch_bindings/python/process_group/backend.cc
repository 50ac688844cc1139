#include "horon/torch_bindings/python/process_group/backend.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/zeros.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/sparse_allreduce.h"
#include "horon/torch_bindings/python/process_group/flat_tensors.h"
#include "horon/torch_bindings/python/process_group/reduction.h"
#include "horon/torch_bindings/python/process_group/work.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::python::process_group {
namespace {

using ::c10d::OpType;
using core::concat;
using torch_detail::Into;
using torch_detail::PendingCollective;

// c10d gives lists, from the time when a process had several GPUs.
template <class Value>
Value& only(std::vector<Value>& list, std::string_view call) {
  if (list.size() == 1) return list.front();
  throw Error(ErrorCode::InvalidArgument,
              concat(call, ": one tensor for each process, not ", list.size()));
}

void require_outputs(const PendingCollective& pending, size_t outputs, size_t members) {
  if (outputs == members) return;
  pending.refuse(
      Error(ErrorCode::InvalidArgument, concat("tensor \"", pending.name, "\": a list of ", outputs,
                                               " tensors, for ", members, " ranks of the group")));
}

// The ends of runs of tensors of one dtype: a group has one.
std::vector<size_t> runs_of_dtype(const Tensors& tensors) {
  std::vector<size_t> ends;
  for (size_t i = 1; i <= tensors.size(); ++i) {
    if (i == tensors.size() || tensors[i].dtype() != tensors[i - 1].dtype()) ends.push_back(i);
  }
  return ends;
}

// For collectives whose results all go into `outputs`, one part each, in order.
Operation::Deliver copies_to(const Tensors& outputs) {
  return [outputs](const std::vector<Pending>& all) {
    size_t i = 0;
    for (const Pending& pending : all) {
      for (const at::Tensor& rows : pending->results()) {
        copy_flat(rows, outputs[i++], pending->name);
      }
    }
  };
}

// Torch names a group as an earlier one that was destroyed, whose calls may still be under way.
// All ranks make the groups of all ranks alike; the id of a set of some never comes again.
std::string unique_name(const std::string& group, const ProcessSet& set) {
  static std::atomic<uint64_t> groups_of_all{0};
  return concat(group, "#", set.is_world() ? ++groups_of_all : set.id());
}

}  // namespace

HoronBackend::HoronBackend(const std::string& group, const ProcessSet& set,
                           std::chrono::milliseconds timeout)
    : Backend(set.rank(), set.size()),
      group_(unique_name(group, set)),
      set_(set),
      timeout_(timeout),
      order_(group_, set),
      messages_(concat("c10d.", group_, ".")) {
  init();
}

HoronBackend::~HoronBackend() { leave(); }

void HoronBackend::shutdown() { leave(); }

// Torch's C++ counts microseconds in 64 bits: what is more, timedelta.max say, has turned negative.
void HoronBackend::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout < std::chrono::milliseconds(0) ? std::chrono::milliseconds::max() : timeout;
}

void HoronBackend::leave() noexcept {
  if (set_.is_world()) return;
  try {
    leave_process_set(set_);
  } catch (...) {  // the session has ended, and the set with it; or it was called before
  }
}

template <class CallOptions>
std::shared_ptr<Operation> HoronBackend::operation(const Tensors& outputs,
                                                   const CallOptions& options) const {
  const bool own = options.timeout > kNoTimeout;
  return std::make_shared<Operation>(outputs, own ? options.timeout : timeout_.load());
}

WorkPtr HoronBackend::work(OpType type, std::shared_ptr<Operation> operation) {
  return c10::make_intrusive<OperationWork>(getRank(), type, order_.count(), std::move(operation),
                                            completions_);
}

int HoronBackend::world_rank(int64_t rank_of_group) const {
  const std::vector<int> ranks = set_.ranks();
  // The collective refuses what is not there, by name.
  const bool known = rank_of_group >= 0 && rank_of_group < static_cast<int64_t>(ranks.size());
  return known ? ranks[static_cast<size_t>(rank_of_group)] : -1;
}

WorkPtr HoronBackend::allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "all_reduce");
  if (tensor.is_sparse()) return allreduce_sparse_tensor(tensor, options);
  const std::shared_ptr<Operation> begun = operation(tensors, options);
  order_.start(*begun, {CollectiveKind::Allreduce}, [&](PendingCollective& pending) {
    set_reduction(pending, options.reduceOp);
    pending.add(begun->outputs()[0], Into::Same);
  });
  return work(OpType::ALLREDUCE, begun);
}

// Ends before it returns: what comes back has another number of entries.
WorkPtr HoronBackend::allreduce_sparse_tensor(const at::Tensor& tensor,
                                              const ::c10d::AllreduceOptions& options) {
  const torch_detail::PlainMode plain;
  const ReduceOp op = reduce_op_of(options.reduceOp);
  tensor.copy_(sparse_allreduce(
      tensor, {.name = concat("c10d.", group_, ".sparse"), .op = op, .process_set = set_}));
  return work(OpType::ALLREDUCE, operation({tensor}, options));
}

WorkPtr HoronBackend::allreduce_coalesced(Tensors& tensors,
                                          const ::c10d::AllreduceCoalescedOptions& options) {
  const std::shared_ptr<Operation> begun = operation(tensors, options);
  size_t begin = 0;
  for (const size_t end : runs_of_dtype(tensors)) {
    order_.start(*begun, {CollectiveKind::Allreduce, true}, [&](PendingCollective& pending) {
      set_reduction(pending, options.reduceOp);
      pending.reserve(end - begin);
      for (size_t i = begin; i < end; ++i) pending.add(begun->outputs()[i], Into::Same);
    });
    begin = end;
  }
  return work(OpType::ALLREDUCE_COALESCED, begun);
}

// An allreduce whose result the others do not keep: in shared memory it takes less than a
// reducescatter to one rank, which does all the sums alone.
WorkPtr HoronBackend::reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) {
  (void)only(tensors, "reduce");
  const std::shared_ptr<Operation> begun = operation(tensors, options);
  order_.start(*begun, {CollectiveKind::Allreduce}, [&](PendingCollective& pending) {
    set_reduction(pending, options.reduceOp);
    const bool keeps = options.rootRank == getRank();
    pending.add(begun->outputs()[0], keeps ? Into::Same : Into::New);
  });
  return work(OpType::REDUCE, begun);
}

WorkPtr HoronBackend::broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) {
  (void)only(tensors, "broadcast");
  const std::shared_ptr<Operation> begun = operation(tensors, options);
  order_.start(*begun, {CollectiveKind::Broadcast}, [&](PendingCollective& pending) {
    pending.set_root(world_rank(options.rootRank));
    pending.add(begun->outputs()[0], Into::Same);
  });
  return work(OpType::BROADCAST, begun);
}

WorkPtr HoronBackend::barrier(const ::c10d::BarrierOptions& options) {
  const std::shared_ptr<Operation> begun = operation({at::zeros({1}, at::kByte)}, options);
  order_.start(*begun, {CollectiveKind::Allreduce}, [&](PendingCollective& pending) {
    pending.spec.reduce_op = ReduceOp::Max;
    pending.add(begun->outputs()[0], Into::Same);
  });
  return work(OpType::BARRIER, begun);
}

WorkPtr HoronBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                const ::c10d::AllgatherOptions& options) {
  return allgather_coalesced(outputs, inputs, options);
}

WorkPtr HoronBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& options) {
  Tensors given;  // of all lists, one after the other
  for (const Tensors& list : outputs) given.insert(given.end(), list.begin(), list.end());
  const std::shared_ptr<Operation> begun = operation(given, options);
  for (size_t i = 0; i < inputs.size(); ++i) {
    order_.start(*begun, {CollectiveKind::Allgather}, [&](PendingCollective& pending) {
      require_outputs(pending, i < outputs.size() ? outputs[i].size() : 0,
                      static_cast<size_t>(getSize()));
      pending.add_rows(flat(inputs[i]));
    });
  }
  begun->deliver_by([members = static_cast<size_t>(getSize()),
                     given = begun->outputs()](const std::vector<Pending>& all) {
    for (size_t i = 0; i < all.size(); ++i) {
      const auto first = given.begin() + static_cast<int64_t>(i * members);
      copy_flat(all[i]->results()[0], all[i]->received_rows()[0],
                {first, first + static_cast<int64_t>(members)}, all[i]->name);
    }
  });
  return work(OpType::ALLGATHER, begun);
}

WorkPtr HoronBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                      const ::c10d::AllgatherOptions& options) {
  const std::shared_ptr<Operation> begun = operation({output}, options);
  order_.start(*begun, {CollectiveKind::Allgather},
               [&](PendingCollective& pending) { pending.add_rows(flat(input)); });
  begun->deliver_by(copies_to(begun->outputs()));
  return work(OpType::_ALLGATHER_BASE, begun);
}

WorkPtr HoronBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const ::c10d::AllgatherOptions& options) {
  const std::shared_ptr<Operation> begun = operation(outputs, options);
  size_t begin = 0;
  for (const size_t end : runs_of_dtype(inputs)) {
    order_.start(*begun, {CollectiveKind::Allgather, true}, [&](PendingCollective& pending) {
      pending.reserve(end - begin);
      for (size_t i = begin; i < end; ++i) {
        pending.add_rows(flat(inputs[i]));
      }
    });
    begin = end;
  }
  begun->deliver_by(copies_to(begun->outputs()));
  return work(OpType::ALLGATHER_COALESCED, begun);
}

WorkPtr HoronBackend::gather(TensorLists& outputs, Tensors& inputs,
                             const ::c10d::GatherOptions& options) {
  const at::Tensor& input = only(inputs, "gather");
  const bool is_root = options.rootRank == getRank();
  const Tensors given = is_root ? only(outputs, "gather") : Tensors();
  const std::shared_ptr<Operation> begun = operation(given, options);
  order_.start(*begun, {CollectiveKind::Gather}, [&](PendingCollective& pending) {
    pending.set_root(world_rank(options.rootRank));
    if (is_root) {
      require_outputs(pending, given.size(), static_cast<size_t>(getSize()));
    }
    pending.add_rows(flat(input));
  });
  if (is_root) {
    begun->deliver_by([given = begun->outputs()](const std::vector<Pending>& all) {
      copy_flat(all[0]->results()[0], all[0]->received_rows()[0], given, all[0]->name);
    });
  }
  return work(OpType::GATHER, begun);
}

WorkPtr HoronBackend::scatter(Tensors& outputs, TensorLists& inputs,
                              const ::c10d::ScatterOptions& options) {
  const at::Tensor& output = only(outputs, "scatter");
  const std::shared_ptr<Operation> begun = operation(outputs, options);
  order_.start(*begun, {CollectiveKind::Scatter}, [&](PendingCollective& pending) {
    pending.set_root(world_rank(options.rootRank));
    if (options.rootRank != getRank()) {
      return pending.add_rows(flat(output).slice(0, 0, 0));
    }
    const Tensors& list = only(inputs, "scatter");
    require_outputs(pending, list.size(), static_cast<size_t>(getSize()));
    pending.add_rows(flat(list), element_counts(list));
  });
  begun->deliver_by(copies_to(begun->outputs()));
  return work(OpType::SCATTER, begun);
}

WorkPtr HoronBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                     const ::c10d::ReduceScatterOptions& options) {
  (void)only(outputs, "reduce_scatter");
  const Tensors& list = only(inputs, "reduce_scatter");
  const std::shared_ptr<Operation> begun = operation(outputs, options);
  order_.start(*begun, {CollectiveKind::Reducescatter}, [&](PendingCollective& pending) {
    set_reduction(pending, options.reduceOp);
    require_outputs(pending, list.size(), static_cast<size_t>(getSize()));
    pending.spec.splits = element_counts(list);
    pending.add_rows(flat(list));
  });
  begun->deliver_by(copies_to(begun->outputs()));
  return work(OpType::REDUCE_SCATTER, begun);
}

WorkPtr HoronBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                           const ::c10d::ReduceScatterOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

WorkPtr HoronBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const ::c10d::ReduceScatterOptions& options) {
  const std::shared_ptr<Operation> begun = operation(outputs, options);
  size_t begin = 0;
  for (const size_t end : runs_of_dtype(inputs)) {
    order_.start(*begun, {CollectiveKind::Reducescatter, inputs.size() > 1},
                 [&](PendingCollective& pending) {
                   set_reduction(pending, options.reduceOp);
                   pending.reserve(end - begin);
                   for (size_t i = begin; i < end; ++i) {
                     pending.add_rows(flat(inputs[i]));
                   }
                 });
    begin = end;
  }
  begun->deliver_by(copies_to(begun->outputs()));
  return work(OpType::_REDUCE_SCATTER_BASE, begun);
}

WorkPtr HoronBackend::alltoall(Tensors& outputs, Tensors& inputs,
                               const ::c10d::AllToAllOptions& options) {
  const std::shared_ptr<Operation> begun = operation(outputs, options);
  order_.start(*begun, {CollectiveKind::Alltoall}, [&](PendingCollective& pending) {
    require_outputs(pending, inputs.size(), static_cast<size_t>(getSize()));
    require_outputs(pending, outputs.size(), static_cast<size_t>(getSize()));
    pending.add_rows(flat(inputs), element_counts(inputs));
  });
  begun->deliver_by([given = begun->outputs()](const std::vector<Pending>& all) {
    copy_flat(all[0]->results()[0], all[0]->received_rows()[0], given, all[0]->name);
  });
  return work(OpType::ALLTOALL, begun);
}

WorkPtr HoronBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                    std::vector<int64_t>& output_splits,
                                    std::vector<int64_t>& input_splits,
                                    const ::c10d::AllToAllOptions& options) {
  const std::shared_ptr<Operation> begun = operation({output}, options);
  order_.start(*begun, {CollectiveKind::Alltoall}, [&](PendingCollective& pending) {
    const int64_t rows = input.dim() > 0 ? input.size(0) : 1;
    const int64_t elements = rows > 0 ? input.numel() / rows : 0;
    std::vector<int64_t> splits = input_splits;
    for (int64_t& rows_of_member : splits) rows_of_member *= elements;
    if (splits.empty()) splits = pending.equal_splits(flat(input));
    pending.add_rows(flat(input), splits);
  });
  const Operation::Deliver copy = copies_to(begun->outputs());
  begun->deliver_by(
      [copy, output_splits, given = begun->outputs()[0]](const std::vector<Pending>& all) {
        copy(all);
        if (output_splits.empty()) return;
        const int64_t elements = given.size(0) > 0 ? given.numel() / given.size(0) : 0;
        const std::vector<int64_t> received = all[0]->received_rows()[0];
        for (size_t i = 0; i < output_splits.size() && i < received.size(); ++i) {
          if (received[i] == output_splits[i] * elements) continue;
          throw Error(
              ErrorCode::Mismatch,
              concat("tensor \"", all[0]->name, "\": rank ", i, " of the group sent ", received[i],
                     " elements, but output_split_sizes says ", output_splits[i] * elements));
        }
      });
  return work(OpType::ALLTOALL_BASE, begun);
}

int HoronBackend::other_member(int64_t rank_of_group, std::string_view call) const {
  const int rank = world_rank(rank_of_group);
  if (rank >= 0 && rank_of_group != getRank()) return rank;
  throw Error(ErrorCode::InvalidArgument, concat(call, ": ", rank_of_group, " is no other rank of ",
                                                 "this group, which has ", getSize(), " ranks"));
}

WorkPtr HoronBackend::message(OpType type, const torch_detail::Message& message, Tensors& tensors) {
  const auto begun = std::make_shared<Operation>(tensors, timeout_.load());
  begun->add(messages_.start(message, begun->outputs().at(0)));
  return c10::make_intrusive<OperationWork>(getRank(), type, order_.count(), begun,
                                            message_completions_);
}

WorkPtr HoronBackend::send(Tensors& tensors, int to, int tag) {
  (void)only(tensors, "send");
  return message(OpType::SEND, {world_rank(getRank()), other_member(to, "send"), tag}, tensors);
}

WorkPtr HoronBackend::recv(Tensors& tensors, int from, int tag) {
  (void)only(tensors, "recv");
  return message(OpType::RECV, {other_member(from, "recv"), world_rank(getRank()), tag}, tensors);
}

}  // namespace horon::python::process_group
