#include "horon/tests/support/fake_device.h"

#include <cstring>
#include <utility>

#include "horon/core/base/error.h"

namespace horon::test {
namespace {

float* floats(std::byte* data) { return reinterpret_cast<float*>(data); }
const float* floats(const std::byte* data) { return reinterpret_cast<const float*>(data); }

class FakeFlight final : public core::InFlight {
 public:
  FakeFlight(std::shared_ptr<FakeMeeting> meeting, uint64_t sequence, FakeDelays delays)
      : meeting_(std::move(meeting)), sequence_(sequence), delays_(delays) {}

  core::Progress step() override {
    if (static_cast<int64_t>(sequence_) == delays_.fail_op_at_sequence) {
      throw Error(ErrorCode::OperationFailed, "the fake network is down");
    }
    if (!meeting_->complete(sequence_) || delays_.op_polls-- > 0) return core::Progress::Polling;
    return core::Progress::Done;
  }

 private:
  const std::shared_ptr<FakeMeeting> meeting_;
  const uint64_t sequence_;
  FakeDelays delays_;
};

class FakeCopy final : public core::PendingCopy {
 public:
  FakeCopy(std::vector<core::CopyItem> items, int polls)
      : items_(std::move(items)), polls_(polls) {}
  bool done() override {
    if (polls_-- > 0) return false;
    for (const core::CopyItem& item : items_) {
      // Nothing may have no address, which memcpy() does not allow.
      if (item.bytes > 0) std::memcpy(item.to, item.from, item.bytes);
    }
    return true;
  }

 private:
  const std::vector<core::CopyItem> items_;
  int polls_;
};

}  // namespace

void FakeMeeting::post(int rank, core::Batch batch) {
  const std::lock_guard lock(mutex_);
  started_[rank].push_back(batch.sequence);
  Group& group = groups_[batch.sequence];
  group.batches.emplace(rank, std::move(batch));
  if (static_cast<int>(group.batches.size()) == size_) compute(group);
}

bool FakeMeeting::complete(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  return groups_[sequence].done;
}

std::vector<uint64_t> FakeMeeting::started(int rank) {
  const std::lock_guard lock(mutex_);
  return started_[rank];
}

void FakeMeeting::compute(Group& group) {
  group.done = true;
  const core::Batch& first = group.batches.begin()->second;
  if (first.kind == CollectiveKind::Barrier) return;
  std::vector<float> result;
  if (first.kind == CollectiveKind::Allgather) {
    for (const auto& [rank, batch] : group.batches) {
      const float* input = floats(batch.input);
      result.insert(result.end(), input, input + batch.count);
    }
  } else {
    result.assign(static_cast<size_t>(first.count), 0.0F);
    for (const auto& [rank, batch] : group.batches) {
      if (first.kind == CollectiveKind::Broadcast && rank != first.root) continue;
      for (size_t i = 0; i < result.size(); ++i) result[i] += floats(batch.input)[i];
    }
    for (float& value : result) value /= static_cast<float>(first.divisor);
  }
  for (const auto& [rank, batch] : group.batches) {
    std::memcpy(floats(batch.output), result.data(), result.size() * sizeof(float));
  }
}

std::unique_ptr<core::InFlight> FakeOp::start(core::Batch batch) {
  const uint64_t sequence = batch.sequence;
  meeting_->post(rank_, std::move(batch));
  return std::make_unique<FakeFlight>(meeting_, sequence, delays_);
}

std::shared_ptr<std::byte> FakeDomain::allocate(size_t bytes) {
  return {new std::byte[bytes], std::default_delete<std::byte[]>()};
}

std::unique_ptr<core::PendingCopy> FakeDomain::copy(std::span<const core::CopyItem> items) {
  // Every second copy is fast, so that copies overtake each other.
  const int polls = ++copies_ % 2 == 0 ? 0 : delays_.copy_polls;
  auto copy =
      std::make_unique<FakeCopy>(std::vector<core::CopyItem>(items.begin(), items.end()), polls);
  if (delays_.copy_polls == 0) {
    (void)copy->done();
    return nullptr;
  }
  return copy;
}

bool FakeEvent::ready() {
  if (polls_-- > 0) return false;
  if (fails_) throw Error(ErrorCode::OperationFailed, "the fake device failed");
  return true;
}

}  // namespace horon::test
