// Which op runs a batch: the first in the table that fits. A pure function of facts that all ranks
// share, so all ranks choose alike; it can say why.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "horon/core/execution/collective_op.h"

namespace horon::core {

class OpTable {
 public:
  // `ops` in order of preference. `allreduce` is the knob of that name: "auto", or the prefix that
  // the name of an allreduce op must have ("shm", "mpi"). Throws Error(Config) if no allreduce op
  // has it.
  OpTable(std::vector<std::unique_ptr<CollectiveOp>> ops, const std::string& allreduce);

  // Throws Error(Config) with the reason of every candidate if nothing fits.
  CollectiveOp& select(const BatchFacts& facts) const;
  // One line per candidate: "shm_allreduce: chosen", "mpi_allreduce: fits, but an earlier one is
  // chosen", or "mpi_broadcast: no, " and its refusal.
  std::vector<std::string> explain(const BatchFacts& facts) const;
  // The job is over: aborts every op.
  void abort() noexcept;

 private:
  // Empty if the op may run such a batch, else why not.
  std::string refusal(const CollectiveOp& op, const BatchFacts& facts) const;

  std::vector<std::unique_ptr<CollectiveOp>> ops_;
  std::string allreduce_prefix_;  // empty: any
};

}  // namespace horon::core
