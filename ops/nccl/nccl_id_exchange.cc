#include "horon/ops/nccl/nccl_id_exchange.h"

namespace horon::ops {

bool BroadcastNcclId::step(NcclUniqueId& id) {
  if (flight_ == nullptr) {
    bytes_ = id;
    core::Batch batch;
    batch.kind = CollectiveKind::Broadcast;
    batch.dtype = DataType::UInt8;
    batch.count = static_cast<int64_t>(bytes_.size());
    batch.output = reinterpret_cast<std::byte*>(bytes_.data());
    batch.input = batch.output;
    flight_ = broadcast_.start(std::move(batch));
  }
  if (flight_->step() != core::Progress::Done) return false;
  flight_.reset();
  id = bytes_;
  return true;
}

}  // namespace horon::ops
