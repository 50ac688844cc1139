#include "horon/ops/nccl/nccl_id_exchange.h"

#include <utility>

namespace horon::ops {

namespace {

// What both ways have in common. `start`: the collective on the bytes.
template <class Start>
bool step_exchange(std::unique_ptr<core::InFlight>& flight, NcclUniqueId& bytes, NcclUniqueId& id,
                   bool gives, const Start& start) {
  if (flight == nullptr) {
    if (gives) bytes = id;
    core::Batch batch;
    batch.dtype = DataType::UInt8;
    batch.count = static_cast<int64_t>(bytes.size());
    batch.output = reinterpret_cast<std::byte*>(bytes.data());
    batch.input = batch.output;
    flight = start(std::move(batch));
  }
  if (flight->step() != core::Progress::Done) return false;
  flight.reset();
  id = bytes;
  return true;
}

}  // namespace

bool BroadcastNcclId::step(NcclUniqueId& id) {
  return step_exchange(flight_, bytes_, id, /*gives=*/true, [this](core::Batch batch) {
    batch.kind = CollectiveKind::Broadcast;
    return broadcast_.start(std::move(batch));
  });
}

bool AllreduceNcclId::step(NcclUniqueId& id) {
  return step_exchange(flight_, bytes_, id, first_, [this](core::Batch batch) {
    batch.reduce_op = ReduceOp::Max;
    return allreduce_.start(std::move(batch));
  });
}

}  // namespace horon::ops
