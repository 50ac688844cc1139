#include "horon/ops/nccl/nccl_id_exchange.h"

#include <iterator>

#include "horon/ops/nccl/host_maximum.h"

namespace horon::ops {

bool AllreduceNcclId::step(NcclUniqueId& id) {
  if (flight_ == nullptr) {
    bytes_ = first_ ? id : NcclUniqueId{};
    flight_ = start_host_maximum(allreduce_, DataType::UInt8, bytes_.data(), std::ssize(bytes_));
  }
  const core::Progress progress = flight_->step();
  is_driven_ = progress == core::Progress::Driving || progress == core::Progress::Advanced;
  if (progress != core::Progress::Done) return false;
  flight_.reset();
  id = bytes_;
  return true;
}

}  // namespace horon::ops
