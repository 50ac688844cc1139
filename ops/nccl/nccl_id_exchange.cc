#include "horon/ops/nccl/nccl_id_exchange.h"

#include <utility>

namespace horon::ops {

bool AllreduceNcclId::step(NcclUniqueId& id) {
  if (flight_ == nullptr) {
    if (first_) bytes_ = id;
    core::Batch batch;
    batch.dtype = DataType::UInt8;
    batch.reduce_op = ReduceOp::Max;
    batch.count = static_cast<int64_t>(bytes_.size());
    batch.output = reinterpret_cast<std::byte*>(bytes_.data());
    batch.input = batch.output;
    flight_ = allreduce_.start(std::move(batch));
  }
  if (flight_->step() != core::Progress::Done) return false;
  flight_.reset();
  id = bytes_;
  return true;
}

}  // namespace horon::ops
