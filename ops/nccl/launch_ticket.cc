#include "horon/ops/nccl/launch_ticket.h"

#include <map>
#include <mutex>

namespace horon::ops {
namespace {

// Of the jobs of this process. An order and its entry end with the sets that share them.
struct Entries {
  std::mutex mutex;
  std::map<std::weak_ptr<LaunchOrder>, std::weak_ptr<LastEntry>, std::owner_less<>> of_order;
};

// Never destroyed: a job may outlive main().
Entries& all_entries() {
  static auto* const entries = new Entries;
  return *entries;
}

}  // namespace

std::shared_ptr<LastEntry> LastEntry::of(const std::shared_ptr<LaunchOrder>& order) {
  Entries& entries = all_entries();
  const std::lock_guard lock(entries.mutex);
  std::erase_if(entries.of_order, [](const auto& each) { return each.second.expired(); });
  std::weak_ptr<LastEntry>& known = entries.of_order[order];
  std::shared_ptr<LastEntry> entry = known.lock();
  if (entry == nullptr) known = entry = std::make_shared<LastEntry>();
  return entry;
}

void LastEntry::wait_in(CudaQueue& queue, uint32_t set) {
  if (event_ != nullptr && set_ != set) queue.wait_for(*event_);
}

void LastEntry::becomes(CudaQueue& queue, uint32_t set) {
  event_ = queue.record();
  set_ = set;
}

bool LaunchTicket::may_enter() {
  if (!proposed_) {
    number_ = order_->propose(set_);
    proposed_ = true;
    core::Batch batch;
    batch.dtype = DataType::Int64;
    batch.reduce_op = ReduceOp::Max;
    batch.count = 1;
    batch.output = reinterpret_cast<std::byte*>(&number_);
    batch.input = batch.output;
    flight_ = allreduce_.start(std::move(batch));
  }
  if (!settled_) {
    // The messages of one number are few: as long as they come, nobody needs to poll for them.
    core::Progress progress = core::Progress::Advanced;
    while (progress == core::Progress::Advanced) progress = flight_->step();
    if (progress != core::Progress::Done) return false;
    flight_.reset();
    order_->settle(set_, number_);
    settled_ = true;
  }
  return order_->may_enter(set_);
}

void LaunchTicket::entered(CudaQueue& queue) {
  last_entry_->becomes(queue, set_);
  order_->entered(set_);
  proposed_ = settled_ = false;
}

}  // namespace horon::ops
