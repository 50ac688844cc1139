// Which op runs a batch: the first in the table that fits. A pure function of facts that all ranks
// share, so all ranks choose alike; it can say why.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "horon/core/execution/collective_op.h"

namespace horon::core {

class OpTable {
 public:
  // `ops` in order of preference. `allreduce` is the knob of that name: "auto", or the prefix that
  // the name of an allreduce op must have ("shm", "mpi"). It restricts each kind of memory that an
  // op with this prefix is for, unless that op works in host copies and other ops reach the memory
  // itself. Throws Error(Config) if no allreduce op has the prefix; `owner` in its text says who
  // runs the collectives: "this job".
  OpTable(std::vector<std::unique_ptr<CollectiveOp>> ops, const std::string& allreduce,
          const std::string& owner = "this job");

  // Throws Error(Config) with the reason of every candidate if nothing fits.
  CollectiveOp& select(const BatchFacts& facts) const;
  // Whether select() would find one. Any thread.
  bool can_run(const BatchFacts& facts) const;
  // The text that select() throws if it finds none: one sentence, and a line for each op that makes
  // collectives of this kind, on whatever memory. If no op does, a line for every op.
  std::string why_none(const BatchFacts& facts) const;
  // One line per candidate: "shm_allreduce: chosen", "mpi_allreduce: fits, but an earlier one is
  // chosen", or "mpi_broadcast: no, " and its refusal.
  std::vector<std::string> explain(const BatchFacts& facts) const;
  // The job is over: see CollectiveOp.
  void abort() noexcept;
  void finish_abort(std::chrono::steady_clock::time_point limit) noexcept;

 private:
  // Empty if the op may run such a batch, else why not.
  std::string refusal(const CollectiveOp& op, const BatchFacts& facts) const;

  CollectiveOp* find(const BatchFacts& facts) const;

  std::vector<std::unique_ptr<CollectiveOp>> ops_;
  std::string allreduce_prefix_;                     // empty: any
  std::array<bool, kDeviceKindCount> restricted_{};  // the prefix is for this kind of memory
};

}  // namespace horon::core
