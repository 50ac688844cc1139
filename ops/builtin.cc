#include "horon/ops/builtin.h"

#include <utility>

#include "horon/core/base/error.h"
#include "horon/ops/host/host_memory.h"
#include "horon/ops/host/shared_memory_allreduce.h"
#include "horon/ops/mpi/mpi_ops.h"

namespace horon::ops {
namespace {

bool shares_memory(const BuiltinParts& parts) {
  return parts.config->shared_memory && parts.topology->one_host() &&
         parts.local_group != nullptr && parts.local_group->available();
}

}  // namespace

size_t builtin_area_bytes(int local_size) { return SharedMemoryAllreduce::area_bytes(local_size); }

std::vector<std::unique_ptr<core::CollectiveOp>> make_builtin_ops(const BuiltinParts& parts) {
  HORON_CHECK(parts.topology != nullptr && parts.config != nullptr, "parts are missing");
  std::vector<std::unique_ptr<core::CollectiveOp>> ops;
  if (shares_memory(parts)) {
    HORON_CHECK(parts.area != nullptr, "the ops need their part of the shared area");
    ops.push_back(std::make_unique<SharedMemoryAllreduce>(*parts.local_group, parts.area));
  }
  if (parts.mpi_communicator != nullptr) {
    for (auto& op : make_mpi_ops(parts.mpi_communicator)) ops.push_back(std::move(op));
  }
  return ops;
}

std::vector<std::unique_ptr<core::MemoryDomain>> make_builtin_domains(
    core::LocalGroup* local_group) {
  std::vector<std::unique_ptr<core::MemoryDomain>> domains;
  domains.push_back(std::make_unique<HostMemory>(local_group));
  return domains;
}

}  // namespace horon::ops
