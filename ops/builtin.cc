#include "horon/ops/builtin.h"

#include <utility>

#include "horon/core/execution/op_table.h"
#include "horon/ops/host/host_memory.h"
#include "horon/ops/host/shared_memory_allreduce.h"
#include "horon/ops/mpi/mpi_ops.h"

namespace horon::ops {
namespace {

bool shares_memory(const Communicator& communicator, const core::Config& config) {
  return config.shared_memory && communicator.topology().one_host() &&
         communicator.local_group().available();
}

}  // namespace

size_t builtin_area_bytes(int local_size) { return SharedMemoryAllreduce::area_bytes(local_size); }

std::vector<std::unique_ptr<core::CollectiveOp>> make_builtin_ops(const Communicator& communicator,
                                                                  const core::Config& config) {
  std::vector<std::unique_ptr<core::CollectiveOp>> ops;
  if (shares_memory(communicator, config)) {
    ops.push_back(
        std::make_unique<SharedMemoryAllreduce>(communicator.local_group(), communicator.area()));
  }
  if (communicator.mpi() != nullptr) {
    for (auto& op : make_mpi_ops(communicator.mpi())) ops.push_back(std::move(op));
  }
  return ops;
}

std::vector<std::unique_ptr<core::MemoryDomain>> make_builtin_domains(
    core::LocalGroup* local_group) {
  std::vector<std::unique_ptr<core::MemoryDomain>> domains;
  domains.push_back(std::make_unique<HostMemory>(local_group));
  return domains;
}

core::Executor::Parts make_execution(const Communicator& communicator, const core::Config& config,
                                     const std::shared_ptr<core::Timeline>& timeline) {
  core::Executor::Parts parts;
  parts.rank = communicator.topology().rank;
  parts.size = communicator.topology().size;
  parts.ranks = communicator.members();
  parts.ops =
      std::make_shared<core::OpTable>(make_builtin_ops(communicator, config), config.allreduce);
  parts.domains = make_builtin_domains(&communicator.local_group());
  parts.timeline = timeline;
  return parts;
}

}  // namespace horon::ops
