// Collectives on several tensors at once. A group is ready, runs and fails as one, under one name:
// ranks may submit groups in different orders without waiting for each other for ever, and the
// tensors travel together.
//
// The tensors of a group have one dtype, and lie in the same order on all ranks; their number and
// shapes are compared. `output` is refused. In place, no two tensors of a group may share memory:
// it is undefined how often that memory is reduced. For everything else see collectives.h.
#pragma once

#include <vector>

#include "horon/torch_bindings/collectives/collectives.h"

namespace horon {

using Tensors = std::vector<at::Tensor>;

// Unnamed: "grouped_allreduce.noname.N" and alike.
Tensors grouped_allreduce(const Tensors& tensors, const AllreduceOptions& options = {});
void grouped_allreduce_(const Tensors& tensors, const AllreduceOptions& options = {});
GroupHandle grouped_allreduce_async(const Tensors& tensors, const AllreduceOptions& options = {});
GroupHandle grouped_allreduce_async_(const Tensors& tensors, const AllreduceOptions& options = {});

Tensors grouped_broadcast(const Tensors& tensors, const BroadcastOptions& options = {});
void grouped_broadcast_(const Tensors& tensors, const BroadcastOptions& options = {});
GroupHandle grouped_broadcast_async(const Tensors& tensors, const BroadcastOptions& options = {});
GroupHandle grouped_broadcast_async_(const Tensors& tensors, const BroadcastOptions& options = {});

Tensors grouped_allgather(const Tensors& tensors, const AllgatherOptions& options = {});
GroupHandle grouped_allgather_async(const Tensors& tensors, const AllgatherOptions& options = {});

// Splits, where given, hold for every tensor.
Tensors grouped_reducescatter(const Tensors& tensors, const ReducescatterOptions& options = {});
GroupHandle grouped_reducescatter_async(const Tensors& tensors,
                                        const ReducescatterOptions& options = {});

Tensors grouped_alltoall(const Tensors& tensors, const AlltoallOptions& options = {});
GroupHandle grouped_alltoall_async(const Tensors& tensors, const AlltoallOptions& options = {});

Tensors grouped_gather(const Tensors& tensors, const GatherOptions& options = {});
GroupHandle grouped_gather_async(const Tensors& tensors, const GatherOptions& options = {});

Tensors grouped_scatter(const Tensors& tensors, const ScatterOptions& options = {});
GroupHandle grouped_scatter_async(const Tensors& tensors, const ScatterOptions& options = {});

}  // namespace horon
