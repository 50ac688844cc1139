// Some ranks of a LocalGroup with an area of their own: what a process set has on one host.
//
// Doorbells and shareable memory are those of the larger group, so a rank has one doorbell for all
// its sets, and a gradient bucket can be reduced in any of them without a copy. Only the area is
// new: memory of the subgroup's first rank, which the others map. It is freed when the last of them
// lets go of it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "horon/core/bootstrap/bootstrap.h"
#include "horon/core/host/local_group.h"

namespace horon::core {

// Collective over all ranks of `bootstrap` that share this host, or over all of its ranks. Each
// rank names the local ranks (of `group`, ascending) of its own subgroup; all ranks of a subgroup
// name the same. A rank that is in none names no ranks, and gets null. One call may make several
// subgroups if they have no rank in common. If a rank can't make or map the area, no subgroup of
// this host gets one: all are not available(), with the reason. Throws only what `bootstrap`
// throws, which is used during the call only.
std::unique_ptr<LocalGroup> make_local_subgroup(const std::shared_ptr<LocalGroup>& group,
                                                const Bootstrap& bootstrap,
                                                const std::vector<int>& local_ranks,
                                                size_t area_bytes);

}  // namespace horon::core
