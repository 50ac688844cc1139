#include "horon/ops/communicator/communicator.h"

#include <utility>

#include "horon/core/base/error.h"
#include "horon/ops/mpi/mpi_communicator.h"

namespace horon::ops {

Communicator::Communicator(Parts parts) : parts_(std::move(parts)) {
  HORON_CHECK(parts_.local_group != nullptr, "a group that is not available is a group too");
  HORON_CHECK(parts_.members.size() == static_cast<size_t>(parts_.topology.size),
              "members and topology agree");
  HORON_CHECK(parts_.local_group->local_size() == parts_.topology.local_size,
              "group and topology agree");
  HORON_CHECK((parts_.area != nullptr) == parts_.local_group->available(),
              "there is an area if and only if there is shared memory");
}

Communicator::~Communicator() = default;

const void* Communicator::mpi() const {
  return parts_.mpi == nullptr ? nullptr : parts_.mpi->handle();
}

void Communicator::set_mpi(std::unique_ptr<MpiCommunicator> mpi) { parts_.mpi = std::move(mpi); }

std::vector<int> Communicator::as_ranks(const std::vector<int>& indices) const {
  std::vector<int> ranks;
  for (const int index : indices) ranks.push_back(parts_.members.at(static_cast<size_t>(index)));
  return ranks;
}

}  // namespace horon::ops
