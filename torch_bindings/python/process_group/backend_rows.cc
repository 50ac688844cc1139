// The collectives of a group that divide or join tensors.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/python/process_group/backend.h"
#include "horon/torch_bindings/python/process_group/flat_tensors.h"
#include "horon/torch_bindings/python/process_group/given_tensors.h"
#include "horon/torch_bindings/python/process_group/reduction.h"

namespace horon::python::process_group {
namespace {

using ::c10d::OpType;
using torch_detail::PendingCollective;

// For collectives whose results all go into `outputs`, one part each, in order. Results that were
// written there directly are not copied.
Operation::Deliver copies_to(const Tensors& outputs) {
  return [outputs](const std::vector<Pending>& all) {
    size_t i = 0;
    for (const Pending& pending : all) {
      for (const at::Tensor& rows : pending->results()) {
        const at::Tensor& output = outputs[i++];
        if (!rows.is_alias_of(output)) copy_flat(rows, output, pending->name);
      }
    }
  };
}

// Adds the one tensor. What comes from each rank of the group goes into one of `outputs`, which are
// the operation's: written there directly if possible. `in_place`: as in may_be_written_apart().
void add_rows_for(PendingCollective& pending, const at::Tensor& rows, const Tensors& outputs,
                  const std::vector<int64_t>& splits, std::optional<size_t> in_place = {}) {
  if (may_be_written_apart(rows, outputs, in_place)) {
    pending.add_rows_apart(rows, splits, outputs);
  } else {
    pending.add_rows(rows, splits);
  }
}

// Copies the results that are not there yet.
Operation::Deliver copies_from_each_rank_to(const Tensors& outputs) {
  return [outputs](const std::vector<Pending>& all) {
    PendingCollective& only = *all.front();
    const at::Tensor& rows = only.results().front();
    if (!rows.defined()) return;
    copy_flat(rows, only.received_rows().front(), outputs, only.name);
  };
}

// Rows of the tensor for each rank of the group, in elements.
std::vector<int64_t> elements_of(const at::Tensor& tensor, std::vector<int64_t> rows) {
  const int64_t all = tensor.dim() > 0 ? tensor.size(0) : 1;
  for (int64_t& of_member : rows) of_member *= all > 0 ? tensor.numel() / all : 0;
  return rows;
}

Tensors divided(const at::Tensor& tensor, const std::vector<int64_t>& rows) {
  return (tensor.dim() > 0 ? tensor : tensor.view({1})).split_with_sizes(rows);
}

}  // namespace

WorkPtr HoronBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                const ::c10d::AllgatherOptions& options) {
  const Tensors& list = only(outputs, "all_gather");
  const at::Tensor& input = only(inputs, "all_gather");
  const std::shared_ptr<Operation> begun = operation(OpType::ALLGATHER, inputs, list, options);
  order_.start(*begun, {CollectiveKind::Allgather}, [&](PendingCollective& pending) {
    require_outputs(pending, list.size(), members());
    require_kind_of(pending, input, list);
    add_rows_for(pending, flat(input), begun->outputs(), {}, static_cast<size_t>(getRank()));
  });
  begun->deliver_by(copies_from_each_rank_to(begun->outputs()));
  return work(begun);
}

// c10d wants a list for each rank of the group here, of what comes from that rank.
WorkPtr HoronBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                          const ::c10d::AllgatherOptions& options) {
  Tensors given;
  for (const Tensors& list : outputs) given.insert(given.end(), list.begin(), list.end());
  const std::shared_ptr<Operation> begun =
      operation(OpType::ALLGATHER_COALESCED, inputs, given, options);
  start_runs(
      *begun, {CollectiveKind::Allgather, true}, inputs,
      [&](PendingCollective& pending) {
        require_lists(pending, outputs, members(), inputs.size());
      },
      [&](PendingCollective& pending, size_t i) {
        for (const Tensors& list : outputs) require_kind_of(pending, inputs[i], {list[i]});
        pending.add_rows(flat(inputs[i]));
      });
  begun->deliver_by(
      [given = begun->outputs(), tensors = inputs.size()](const std::vector<Pending>& all) {
        size_t i = 0;
        for (const Pending& pending : all) {
          const std::vector<std::vector<int64_t>> received = pending->received_rows();
          for (size_t part = 0; part < received.size(); ++part, ++i) {
            Tensors of_ranks;
            for (size_t j = i; j < given.size(); j += tensors) of_ranks.push_back(given[j]);
            copy_flat(pending->results()[part], received[part], of_ranks, pending->name);
          }
        }
      });
  return work(begun);
}

WorkPtr HoronBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                      const ::c10d::AllgatherOptions& options) {
  const std::shared_ptr<Operation> begun =
      operation(OpType::_ALLGATHER_BASE, {input}, {output}, options);
  order_.start(*begun, {CollectiveKind::Allgather}, [&](PendingCollective& pending) {
    require_kind_of(pending, input, {output});
    require_equal_parts(pending, output, input, members());
    pending.add_rows(flat(input), {}, flat_output(output));
  });
  begun->deliver_by(copies_to(begun->outputs()));
  return work(begun);
}

WorkPtr HoronBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const ::c10d::AllgatherOptions& options) {
  const std::shared_ptr<Operation> begun =
      operation(OpType::ALLGATHER_COALESCED, inputs, outputs, options);
  start_runs(
      *begun, {CollectiveKind::Allgather, true}, inputs,
      [&](PendingCollective& pending) { require_results(pending, outputs.size(), inputs.size()); },
      [&](PendingCollective& pending, size_t i) {
        require_kind_of(pending, inputs[i], {outputs[i]});
        require_equal_parts(pending, outputs[i], inputs[i], members());
        pending.add_rows(flat(inputs[i]));
      });
  begun->deliver_by(copies_to(begun->outputs()));
  return work(begun);
}

WorkPtr HoronBackend::gather(TensorLists& outputs, Tensors& inputs,
                             const ::c10d::GatherOptions& options) {
  const at::Tensor& input = only(inputs, "gather");
  const bool is_root = options.rootRank == getRank();
  const Tensors given = is_root ? only(outputs, "gather") : Tensors();
  const std::shared_ptr<Operation> begun = operation(OpType::GATHER, inputs, given, options);
  order_.start(*begun, {CollectiveKind::Gather}, [&](PendingCollective& pending) {
    pending.set_root(world_rank(options.rootRank));
    if (!is_root) return pending.add_rows(flat(input));
    require_outputs(pending, given.size(), members());
    require_kind_of(pending, input, given);
    add_rows_for(pending, flat(input), begun->outputs(), {}, static_cast<size_t>(getRank()));
  });
  if (is_root) begun->deliver_by(copies_from_each_rank_to(begun->outputs()));
  return work(begun);
}

WorkPtr HoronBackend::gather_single(at::Tensor& output, at::Tensor& input,
                                    const ::c10d::GatherOptions& options) {
  const bool is_root = options.rootRank == getRank();
  const Tensors given = is_root ? Tensors{output} : Tensors();
  const std::shared_ptr<Operation> begun = operation(OpType::GATHER, {input}, given, options);
  order_.start(*begun, {CollectiveKind::Gather}, [&](PendingCollective& pending) {
    pending.set_root(world_rank(options.rootRank));
    if (!is_root) return pending.add_rows(flat(input));
    require_kind_of(pending, input, given);
    require_equal_parts(pending, output, input, members());
    pending.add_rows(flat(input), {}, flat_output(output));
  });
  if (is_root) begun->deliver_by(copies_to(begun->outputs()));
  return work(begun);
}

WorkPtr HoronBackend::scatter(Tensors& outputs, TensorLists& inputs,
                              const ::c10d::ScatterOptions& options) {
  const at::Tensor& output = only(outputs, "scatter");
  const bool is_root = options.rootRank == getRank();
  const Tensors list = is_root ? only(inputs, "scatter") : Tensors();
  const std::shared_ptr<Operation> begun = operation(OpType::SCATTER, list, outputs, options);
  order_.start(*begun, {CollectiveKind::Scatter}, [&](PendingCollective& pending) {
    pending.set_root(world_rank(options.rootRank));
    if (!is_root) return pending.add_rows(flat(output).slice(0, 0, 0));
    require_outputs(pending, list.size(), members());
    require_kind_of(pending, output, list);
    pending.add_rows(flat(list), element_counts(list));
  });
  begun->deliver_by(copies_to(begun->outputs()));
  return work(begun);
}

WorkPtr HoronBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                     const ::c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only(outputs, "reduce_scatter");
  const Tensors& list = only(inputs, "reduce_scatter");
  const std::shared_ptr<Operation> begun =
      operation(OpType::REDUCE_SCATTER, list, outputs, options);
  order_.start(*begun, {CollectiveKind::Reducescatter}, [&](PendingCollective& pending) {
    set_reduction(pending, options.reduceOp);
    require_outputs(pending, list.size(), members());
    require_kind_of(pending, output, list);
    require_own_part(pending, list[static_cast<size_t>(getRank())], output);
    pending.spec.splits = element_counts(list);
    const at::Tensor input = flat(list);
    pending.add_rows(input, {}, flat_output_beside(input, output));
  });
  begun->deliver_by(copies_to(begun->outputs()));
  return work(begun);
}

WorkPtr HoronBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                           const ::c10d::ReduceScatterOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

WorkPtr HoronBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                      const ::c10d::ReduceScatterOptions& options) {
  const std::shared_ptr<Operation> begun =
      operation(OpType::_REDUCE_SCATTER_BASE, inputs, outputs, options);
  const bool is_alone = inputs.size() == 1;  // else an output may be the input of another one
  start_runs(
      *begun, {CollectiveKind::Reducescatter, !is_alone}, inputs,
      [&](PendingCollective& pending) {
        set_reduction(pending, options.reduceOp);
        require_results(pending, outputs.size(), inputs.size());
      },
      [&](PendingCollective& pending, size_t i) {
        require_kind_of(pending, inputs[i], {outputs[i]});
        require_equal_parts(pending, inputs[i], outputs[i], members());
        const at::Tensor input = flat(inputs[i]);
        pending.add_rows(input, {},
                         is_alone ? flat_output_beside(input, outputs[i]) : at::Tensor());
      });
  begun->deliver_by(copies_to(begun->outputs()));
  return work(begun);
}

WorkPtr HoronBackend::alltoall(Tensors& outputs, Tensors& inputs,
                               const ::c10d::AllToAllOptions& options) {
  const std::shared_ptr<Operation> begun = operation(OpType::ALLTOALL, inputs, outputs, options);
  order_.start(*begun, {CollectiveKind::Alltoall}, [&](PendingCollective& pending) {
    require_outputs(pending, inputs.size(), members());
    require_outputs(pending, outputs.size(), members());
    require_kind_of(pending, inputs.front(), inputs);
    require_kind_of(pending, inputs.front(), outputs);
    add_rows_for(pending, flat(inputs), begun->outputs(), element_counts(inputs));
  });
  begun->deliver_by(copies_from_each_rank_to(begun->outputs()));
  return work(begun);
}

WorkPtr HoronBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                    std::vector<int64_t>& output_splits,
                                    std::vector<int64_t>& input_splits,
                                    const ::c10d::AllToAllOptions& options) {
  const std::shared_ptr<Operation> begun =
      operation(OpType::ALLTOALL_BASE, {input}, {output}, options);
  Tensors parts;
  order_.start(*begun, {CollectiveKind::Alltoall}, [&](PendingCollective& pending) {
    require_kind_of(pending, input, {output});
    const std::vector<int64_t> sent =
        rows_of_members(pending, input, input_splits, members(), "input_split_sizes");
    const std::vector<int64_t> received =
        rows_of_members(pending, output, output_splits, members(), "output_split_sizes");
    parts = divided(begun->outputs().front(), received);
    const std::vector<int64_t> splits = elements_of(input, sent);
    add_rows_for(pending, flat(input), parts, splits);
  });
  begun->deliver_by(copies_from_each_rank_to(parts));
  return work(begun);
}

}  // namespace horon::python::process_group
