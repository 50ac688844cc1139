// The arithmetic of an allreduce or a reducescatter over several hosts: the sum of one host's
// ranks, which travels, and the result made of the sums of all hosts.
//
// Ranks are added in their order on each host, and hosts in their order, whoever does it: all ranks
// get the same bits.
//
// Narrowed: sums of float32 are rounded (wire_type.h) before they travel, and so is the own sum of
// the host that adds them, and the result if it travels. All sums are made in float32.
#pragma once

#include <cstddef>
#include <span>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/ops/host/host_kernels.h"

namespace horon::ops {

class HostSums {
 public:
  // `raw` and `wire_type`: as in ExchangePlan.
  HostSums(const core::Batch& batch, bool raw, WireType wire_type);

  bool narrowed() const { return narrowed_; }
  // The sum of a host with one rank is that rank's input, unless it is scaled or widened.
  bool is_input(int local_size) const;
  // Writes the sum of the inputs of this host's ranks, in the wire type. `sum` overlaps with no
  // input.
  void add_ranks(std::span<const std::byte* const> inputs, std::byte* sum, int64_t count) const;
  // Not raw and not narrowed: adds up the sums of some hosts, in the wire type. `sum` may be the
  // first of them.
  void add_some(std::span<const std::byte* const> sums, std::byte* sum, int64_t count) const;
  // Makes the result from the sums of all hosts, for the ranks of this host. One sum may stand for
  // several hosts that have been added up.
  void add_hosts(std::span<const std::byte* const> sums, std::span<std::byte* const> outputs,
                 int64_t count) const;
  // Narrowed, if the result travels too: make it in the wire type, and widen it for each rank.
  // `result` may be one of the sums.
  void add_hosts_for_wire(std::span<const std::byte* const> sums, std::byte* result,
                          int64_t count) const;
  void widen_result(const std::byte* result, std::span<std::byte* const> outputs,
                    int64_t count) const;

 private:
  void widen_ranks(std::span<const std::byte* const> inputs, std::byte* sum, int64_t count) const;
  void narrow_ranks(std::span<const std::byte* const> inputs, std::byte* sum, int64_t count) const;
  void add_wide(std::span<const std::byte* const> sums, std::span<std::byte* const> outputs,
                int64_t count) const;
  template <class Visit>
  void for_each_total(std::span<const std::byte* const> sums, int64_t count,
                      const Visit& visit) const;

  const DataType dtype_;
  const double prescale_;
  const WireType wire_type_;
  const bool raw_;
  const bool narrowed_;
  const bool widened_;
  Reduction of_ranks_;
  Reduction of_hosts_;
  double factor_;  // widened or narrowed: of the result
  int64_t divisor_;
};

}  // namespace horon::ops
