#include "horon/torch_bindings/python/process_group/backend.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ops/zeros.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/python/process_group/given_tensors.h"
#include "horon/torch_bindings/python/process_group/reduction.h"
#include "horon/torch_bindings/python/process_group/sparse_rows.h"
#include "horon/torch_bindings/python/process_group/work.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::python::process_group {
namespace {

using ::c10d::OpType;
using core::concat;
using torch_detail::Into;
using torch_detail::PendingCollective;

// Torch's own name of a group will not do: its members may know the group by unlike names, and a
// later group may have the name of one whose calls are still under way. All ranks make the groups
// of all ranks alike; the id of a set of some never comes again.
std::string unique_name(const ProcessSet& set) {
  static std::atomic<uint64_t> groups_of_all{0};
  return set.is_world() ? concat("all#", ++groups_of_all) : concat("some#", set.id());
}

}  // namespace

HoronBackend::HoronBackend(const ProcessSet& set, std::chrono::milliseconds timeout, Parts parts)
    : CallsOfSomeVersions(set.rank(), set.size()),
      group_(unique_name(set)),
      set_(set),
      timeout_(timeout),
      parts_(std::move(parts)),
      order_(group_, set),
      messages_(concat("c10d.", group_, "."), torch_detail::MessageOrder::Compares::Elements) {
  init();
  if (set_.is_world()) order_sets_on_gpus();  // groups of some ranks come without the others
}

HoronBackend::~HoronBackend() { leave(); }

void HoronBackend::shutdown() { leave(); }

void HoronBackend::abort() {
  throw Error(ErrorCode::InvalidArgument,
              "the backend \"horon\" has no abort(): its calls end when all ranks have made them, "
              "or at the timeout of the group; destroy_process_group() waits for none of them");
}

// Torch's C++ counts microseconds in 64 bits: a longer timeout, timedelta.max say, has overflowed
// to a negative one.
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

WorkPtr HoronBackend::work(const std::shared_ptr<Operation>& operation,
                           const std::shared_ptr<CompletionThreads>& threads,
                           MessageSource source) {
  const bool is_profiled = operation->is_profiled();  // before others can end it
  late_results_->add(operation);
  auto work = c10::make_intrusive<OperationWork>(getRank(), order_.count(), operation, threads,
                                                 late_results_, std::move(source));
  if (is_profiled) work->watch();
  return work;
}

int HoronBackend::world_rank(int64_t rank_of_group) const {
  const std::vector<int> ranks = set_.ranks();
  // The collective refuses an unknown rank, by name.
  const bool known = rank_of_group >= 0 && rank_of_group < static_cast<int64_t>(ranks.size());
  return known ? ranks[static_cast<size_t>(rank_of_group)] : -1;
}

WorkPtr HoronBackend::allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "all_reduce");
  if (tensor.is_sparse()) return allreduce_sparse_tensor(tensor, options);
  return compressed_allreduce(tensor, options, Compression::None);
}

WorkPtr HoronBackend::compressed_allreduce(const at::Tensor& tensor,
                                           const ::c10d::AllreduceOptions& options,
                                           Compression compression) {
  const std::shared_ptr<Operation> begun =
      operation(OpType::ALLREDUCE, {tensor}, {tensor}, options);
  order_.start(*begun, {CollectiveKind::Allreduce}, [&](PendingCollective& pending) {
    set_reduction(pending, options.reduceOp);
    if (tensor.scalar_type() == at::kFloat) pending.spec.compression = compression;
    pending.add(begun->outputs()[0], Into::Same);
  });
  return work(begun);
}

// The result has another number of entries than the tensor, which gets them when it is delivered.
WorkPtr HoronBackend::allreduce_sparse_tensor(const at::Tensor& tensor,
                                              const ::c10d::AllreduceOptions& options) {
  const std::shared_ptr<Operation> begun =
      operation(OpType::ALLREDUCE, {tensor}, {tensor}, options);
  order_.start(*begun, {CollectiveKind::Allgather, true}, [&](PendingCollective& pending) {
    const torch_detail::PlainMode plain;
    add_sparse(pending, tensor, options.reduceOp);
    torch_detail::mark_written(tensor);
  });
  begun->deliver_by([tensor, op = options.reduceOp](const std::vector<Pending>& all) {
    const torch_detail::PlainMode plain;
    at::Tensor(tensor).copy_(sparse_sum(*all.front(), tensor, op));
  });
  return work(begun);
}

void HoronBackend::start_runs(Operation& operation, const CallOrder::Start& what,
                              const Tensors& tensors,
                              const std::function<void(PendingCollective&)>& prepare,
                              const std::function<void(PendingCollective&, size_t)>& add) {
  const std::vector<size_t> ends = runs_of_dtype(tensors);
  order_.start_all(operation, what, ends.size(), [&](PendingCollective& pending, size_t run) {
    const size_t begin = run > 0 ? ends[run - 1] : 0;
    prepare(pending);
    pending.reserve(ends[run] - begin);
    for (size_t i = begin; i < ends[run]; ++i) add(pending, i);
  });
}

WorkPtr HoronBackend::allreduce_coalesced(Tensors& tensors,
                                          const ::c10d::AllreduceCoalescedOptions& options) {
  const std::shared_ptr<Operation> begun =
      operation(OpType::ALLREDUCE_COALESCED, tensors, tensors, options);
  start_runs(
      *begun, {CollectiveKind::Allreduce, true}, tensors,
      [&](PendingCollective& pending) { set_reduction(pending, options.reduceOp); },
      [&](PendingCollective& pending, size_t i) { pending.add(begun->outputs()[i], Into::Same); });
  return work(begun);
}

// An allreduce whose result the other ranks do not keep: in shared memory it takes less time than a
// reducescatter to one rank, which computes all sums alone.
WorkPtr HoronBackend::reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) {
  (void)only(tensors, "reduce");
  const std::shared_ptr<Operation> begun = operation(OpType::REDUCE, tensors, tensors, options);
  order_.start(*begun, {CollectiveKind::Allreduce}, [&](PendingCollective& pending) {
    set_reduction(pending, options.reduceOp);
    const int root = world_rank(options.rootRank);
    if (root < 0) pending.set_root(root);  // which refuses it; else an allreduce has none
    pending.remark = concat("reduce to rank ", root);
    const bool keeps = options.rootRank == getRank();
    pending.add(begun->outputs()[0], keeps ? Into::Same : Into::Nowhere);
  });
  return work(begun);
}

WorkPtr HoronBackend::broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) {
  (void)only(tensors, "broadcast");
  const std::shared_ptr<Operation> begun = operation(OpType::BROADCAST, tensors, tensors, options);
  order_.start(*begun, {CollectiveKind::Broadcast}, [&](PendingCollective& pending) {
    pending.set_root(world_rank(options.rootRank));
    pending.add(begun->outputs()[0], Into::Same);
  });
  return work(begun);
}

WorkPtr HoronBackend::barrier(const ::c10d::BarrierOptions& options) {
  const std::shared_ptr<Operation> begun =
      operation(OpType::BARRIER, {}, {at::zeros({1}, at::kByte)}, options);
  order_.start(*begun, {CollectiveKind::Allreduce}, [&](PendingCollective& pending) {
    pending.spec.reduce_op = ReduceOp::Max;
    pending.remark = "barrier";
    pending.add(begun->outputs()[0], Into::Same);
  });
  return work(begun);
}

void HoronBackend::monitoredBarrier(const ::c10d::BarrierOptions& options, bool /*wait_for_all*/) {
  ::c10d::BarrierOptions waits = options;
  waits.asyncOp = false;
  barrier(waits)->wait();
}

int HoronBackend::other_member(int64_t rank_of_group, std::string_view call) const {
  const int rank = world_rank(rank_of_group);
  if (rank >= 0 && rank_of_group != getRank()) return rank;
  throw Error(ErrorCode::InvalidArgument,
              concat(call, ": rank ", rank_of_group, " is not another rank of ",
                     "this group, which has ", getSize(), " ranks"));
}

std::shared_ptr<Operation> HoronBackend::message(OpType type, const Tensors& tensors) const {
  auto begun =
      std::make_shared<Operation>(type, ProfiledCall(type, tensors), tensors, timeout_.load());
  begun->count_time_in_wait();
  return begun;
}

WorkPtr HoronBackend::send(Tensors& tensors, int to, int tag) {
  (void)only(tensors, "send");
  const torch_detail::Message sent{world_rank(getRank()), other_member(to, "send"), tag};
  const std::shared_ptr<Operation> begun = message(OpType::SEND, tensors);
  begun->add(messages_.start(sent, begun->outputs().at(0)));
  return work(begun, message_completions_);
}

WorkPtr HoronBackend::recv(Tensors& tensors, int from, int tag) {
  (void)only(tensors, "recv");
  const torch_detail::Message expected{other_member(from, "recv"), world_rank(getRank()), tag};
  const std::shared_ptr<Operation> begun = message(OpType::RECV, tensors);
  begun->add(messages_.start(expected, begun->outputs().at(0)));
  return work(begun, message_completions_, [from] { return from; });
}

WorkPtr HoronBackend::recvAnysource(Tensors& tensors, int tag) {
  (void)only(tensors, "recv");
  const std::vector<int> ranks = set_.ranks();
  const int me = world_rank(getRank());
  std::vector<int> others = ranks;
  std::erase(others, me);
  const std::shared_ptr<Operation> begun = message(OpType::RECVANYSOURCE, tensors);
  auto [pending, source] = messages_.start_from_any(others, {-1, me, tag}, begun->outputs().at(0));
  begun->add(std::move(pending));
  return work(begun, message_completions_, [ranks, chosen = std::move(source)] {
    const auto known = std::find(ranks.begin(), ranks.end(), chosen->load());
    if (known != ranks.end()) return static_cast<int>(known - ranks.begin());
    throw Error(
        ErrorCode::InvalidArgument,
        "recv from any rank: the source is known only after the message has come; wait() first");
  });
}

}  // namespace horon::python::process_group
