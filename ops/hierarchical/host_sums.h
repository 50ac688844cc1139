// The arithmetic of an allreduce over several hosts: the sum of one host's ranks, which travels,
// and the result made of the sums of all hosts.
//
// Ranks are added in their order on each host, and hosts in their order, whoever does it: all ranks
// get the same bits.
#pragma once

#include <cstddef>
#include <span>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/ops/host/host_kernels.h"

namespace horon::ops {

class HostSums {
 public:
  HostSums(const core::Batch& batch, const ExchangePlan& plan);

  // The sum of a host with one rank is that rank's input, unless it is scaled or widened.
  bool is_input(int local_size) const;
  // sum[i]: of the inputs of this host's ranks, in plan.wire_type. It overlaps with none of them.
  void add_ranks(std::span<const std::byte* const> inputs, std::byte* sum, int64_t count) const;
  // The result, from the sums of all hosts, for the ranks of this host.
  void add_hosts(std::span<const std::byte* const> sums, std::span<std::byte* const> outputs,
                 int64_t count) const;

 private:
  void widen_ranks(std::span<const std::byte* const> inputs, std::byte* sum, int64_t count) const;

  const DataType dtype_;
  const double prescale_;
  const bool raw_;
  const bool widened_;
  Reduction of_ranks_;
  Reduction of_hosts_;
  double factor_;  // widened: of the result
  int64_t divisor_;
};

}  // namespace horon::ops
