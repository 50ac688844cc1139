#include "horon/ops/hierarchical/eager_reduction.h"

#include <deque>

#include "horon/ops/hierarchical/host_sums.h"
#include "horon/ops/hierarchical/wire_type.h"

namespace horon::ops {

EagerReduction::EagerReduction(const core::Topology& topology)
    : members_of_host_(static_cast<size_t>(topology.host_count())),
      one_rank_each_(topology.host_count() == topology.size) {
  for (size_t member = 0; member < topology.host_of.size(); ++member) {
    members_of_host_.at(static_cast<size_t>(topology.host_of[member])).push_back(member);
  }
}

void EagerReduction::operator()(const core::Batch& batch,
                                std::span<const std::byte* const> inputs) const {
  const WireType wire_type =
      choose_wire_type(batch.dtype, batch.reduce_op, batch.count, one_rank_each_, batch.dtype);
  const HostSums sums(batch, one_rank_each_, wire_type);
  std::deque<std::vector<std::byte>> made;
  std::vector<const std::byte*> of_hosts;
  for (const std::vector<size_t>& members : members_of_host_) {
    if (sums.is_input(static_cast<int>(members.size()))) {
      of_hosts.push_back(inputs[members.front()]);
      continue;
    }
    std::vector<const std::byte*> of_host;
    for (const size_t member : members) of_host.push_back(inputs[member]);
    std::vector<std::byte>& sum =
        made.emplace_back(static_cast<size_t>(wire_type.bytes(batch.count)));
    sums.add_ranks(of_host, sum.data(), batch.count);
    of_hosts.push_back(sum.data());
  }
  std::byte* const output = batch.output;
  sums.add_hosts(of_hosts, {&output, 1}, batch.count);
}

}  // namespace horon::ops
