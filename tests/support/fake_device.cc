#include "horon/tests/support/fake_device.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/execution/neutral.h"
#include "horon/ops/host/half.h"
#include "horon/tests/support/bfloat16.h"

namespace horon::test {

struct FakeDevice::State {
  explicit State(Options given) : options(given), random(given.seed) {}

  struct Queued {
    Work work;
    int delay = 0;
  };

  bool turn() {
    const std::lock_guard lock(mutex);
    std::vector<std::deque<Queued>*> busy;
    for (auto& queue : queues) {
      if (!queue.empty()) busy.push_back(&queue);
    }
    if (busy.empty() || failed) return false;
    std::shuffle(busy.begin(), busy.end(), random);
    for (std::deque<Queued>* const queue : busy) {
      Queued& head = queue->front();
      if (head.delay > 0) {
        --head.delay;
        return true;
      }
      if (head.work.may_run && !head.work.may_run()) continue;
      if (done++ == options.fails_at) {
        failed = true;
        return false;
      }
      if (head.work.run) head.work.run();
      queue->pop_front();
      return true;
    }
    return false;
  }

  // On the device's own thread.
  void serve() {
    for (;;) {
      while (turn()) {
      }
      std::unique_lock lock(mutex);
      if (stopped) return;
      // Another device does not wake this one when it reaches a collective that this one waits for.
      work_came.wait_for(lock, std::chrono::microseconds(100));
    }
  }

  const Options options;
  std::mutex mutex;
  std::condition_variable work_came;
  std::deque<std::deque<Queued>> queues;
  std::mt19937 random;
  int done = 0;
  bool stopped = false;
  std::atomic<bool> failed{false};
  std::atomic<int> host_waits{0};
  std::thread thread;
};

namespace {

using core::Batch;
using core::CopyItem;
using core::Progress;

// The i-th of the elements at `data`.
float load(DataType type, const std::byte* data, size_t i) {
  if (type == DataType::Float16 || type == DataType::BFloat16) {
    uint16_t bits = 0;
    std::memcpy(&bits, data + i * sizeof(bits), sizeof(bits));
    return type == DataType::Float16 ? ops::float_from_half(bits) : ops::float_from_bfloat16(bits);
  }
  float value = 0;
  std::memcpy(&value, data + i * sizeof(value), sizeof(value));
  return value;
}

// Rounds to nearest, ties to even.
void store(DataType type, std::byte* data, size_t i, float value) {
  if (type == DataType::Float16 || type == DataType::BFloat16) {
    const uint16_t bits =
        type == DataType::Float16 ? ops::half_from_float(value) : ops::bfloat16_from_float(value);
    std::memcpy(data + i * sizeof(bits), &bits, sizeof(bits));
  } else {
    std::memcpy(data + i * sizeof(value), &value, sizeof(value));
  }
}

class DeviceEvent final : public core::Event {
 public:
  explicit DeviceEvent(std::shared_ptr<FakeDevice::State> device)
      : device_(std::move(device)), happened_(std::make_shared<std::atomic<bool>>(false)) {}
  bool happened() override {
    if (device_->failed) throw Error(ErrorCode::OperationFailed, "the fake device failed");
    return *happened_;
  }
  void wait() override {
    ++device_->host_waits;
    while (!happened()) {
      if (!device_->options.by_hand || !device_->turn()) std::this_thread::yield();
    }
  }
  const std::shared_ptr<std::atomic<bool>>& flag() const { return happened_; }

 private:
  const std::shared_ptr<FakeDevice::State> device_;
  const std::shared_ptr<std::atomic<bool>> happened_;
};

DataType type_of(const CopyItem& item) {
  return item.type == Compression::Float16 ? DataType::Float16 : DataType::BFloat16;
}

// Does the copies, with the casts and factors of a kernel.
void copy_now(std::span<const CopyItem> items) {
  for (const CopyItem& item : items) {
    if (item.bytes == 0) continue;  // an empty piece may have no address
    if (item.from == nullptr) {
      core::fill({item.to, item.bytes}, item.pattern);
      continue;
    }
    const auto factor = static_cast<float>(item.factor);
    const bool narrow = item.cast == CopyItem::Cast::Narrow;
    switch (item.cast) {
      case CopyItem::Cast::None:
        std::memcpy(item.to, item.from, item.bytes);
        break;
      case CopyItem::Cast::Narrow:
      case CopyItem::Cast::Widen: {
        const DataType from = narrow ? DataType::Float32 : type_of(item);
        const DataType to = narrow ? type_of(item) : DataType::Float32;
        for (size_t i = 0; i < item.bytes / size_of(from); ++i) {
          store(to, item.to, i, load(from, item.from, i) * factor);
        }
        break;
      }
    }
  }
}

class ImmediateQueue final : public core::MemoryQueue {
 public:
  bool immediate() const override { return true; }
  bool wait_for(core::Event&) override { return false; }
  void copy(std::span<const CopyItem> items) override { copy_now(items); }
  std::shared_ptr<core::Event> record() override { return nullptr; }
};

[[noreturn]] void fail() { throw Error(ErrorCode::OperationFailed, "the fake network is down"); }

class FakeFlight final : public core::InFlight {
 public:
  FakeFlight(std::shared_ptr<FakeMeeting> meeting, uint64_t sequence, FakeDelays delays)
      : meeting_(std::move(meeting)), sequence_(sequence), delays_(delays) {}

  Progress step() override {
    if (static_cast<int64_t>(sequence_) == delays_.fail_op_at_sequence) fail();
    if (!meeting_->complete(sequence_) || delays_.op_polls-- > 0) return Progress::Polling;
    return Progress::Done;
  }

 private:
  const std::shared_ptr<FakeMeeting> meeting_;
  const uint64_t sequence_;
  FakeDelays delays_;
};

// Like a communicator that does not block: its kernel is enqueued some calls after the start.
class EnqueuedFlight final : public core::InFlight {
 public:
  EnqueuedFlight(FakeQueue& queue, std::function<bool()> kernel, bool fails, int polls)
      : queue_(queue), kernel_(std::move(kernel)), fails_(fails), polls_(polls) {}
  Progress step() override {
    if (polls_-- > 0) return Progress::Polling;
    queue_.enqueue({std::move(kernel_), nullptr});
    return Progress::Done;
  }
  void watch() override {
    if (fails_) fail();
  }

 private:
  FakeQueue& queue_;
  std::function<bool()> kernel_;
  const bool fails_;
  int polls_;
};

}  // namespace

FakeDevice::FakeDevice(Options options) : state_(std::make_shared<State>(options)) {
  if (!options.by_hand) state_->thread = std::thread([state = state_] { state->serve(); });
}

FakeDevice::~FakeDevice() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
  }
  state_->work_came.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
  const std::lock_guard lock(state_->mutex);
  for (auto& queue : state_->queues) queue.clear();
}

bool FakeDevice::turn() { return state_->turn(); }
int FakeDevice::host_waits() const { return state_->host_waits; }
int FakeDevice::index() const { return state_->options.index; }

FakeQueue::FakeQueue(const FakeDevice& device)
    : device_(device.state_), index_([this] {
        const std::lock_guard lock(device_->mutex);
        device_->queues.emplace_back();
        return device_->queues.size() - 1;
      }()) {}

void FakeQueue::enqueue(FakeDevice::Work work) {
  const std::lock_guard lock(device_->mutex);
  if (device_->stopped) return;
  if (device_->failed) throw Error(ErrorCode::OperationFailed, "the fake device failed");
  std::uniform_int_distribution<int> delay(0, device_->options.delay_max);
  device_->queues[index_].push_back({std::move(work), delay(device_->random)});
  device_->work_came.notify_one();
}

bool FakeQueue::wait_for(core::Event& event) {
  const auto* const of_device = dynamic_cast<const DeviceEvent*>(&event);
  if (of_device == nullptr) return false;
  if (device_->options.loses_waits) return true;
  enqueue({[flag = of_device->flag()] { return flag->load(); }, nullptr});
  return true;
}

void FakeQueue::copy(std::span<const CopyItem> items) {
  run([copied = std::vector<CopyItem>(items.begin(), items.end())] { copy_now(copied); });
}

std::shared_ptr<core::Event> FakeQueue::record() { return record_ready(); }

std::unique_ptr<core::Event> FakeQueue::record_ready() {
  auto event = std::make_unique<DeviceEvent>(device_);
  run([flag = event->flag()] { *flag = true; });
  return event;
}

void FakeMeeting::post(int rank, Batch batch) {
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

std::vector<int64_t> FakeMeeting::tensor_counts(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  const core::BlockCounts& counts = groups_.at(sequence).batches.at(0).tensor_counts;
  return {counts.begin(), counts.end()};
}

void FakeMeeting::compute(Group& group) {
  group.done = true;
  const Batch& first = group.batches.begin()->second;
  if (first.kind == CollectiveKind::Barrier) return;
  const DataType type = first.dtype;
  std::vector<float> result;
  if (first.kind == CollectiveKind::Allgather) {
    for (const auto& [rank, batch] : group.batches) {
      for (size_t i = 0; i < static_cast<size_t>(batch.count); ++i) {
        result.push_back(load(type, batch.input, i));
      }
    }
  } else {
    result.assign(static_cast<size_t>(first.count), 0.0F);
    for (const auto& [rank, batch] : group.batches) {
      if (first.kind == CollectiveKind::Broadcast && rank != first.root) continue;
      for (size_t i = 0; i < result.size(); ++i) result[i] += load(type, batch.input, i);
    }
    for (float& value : result) value /= static_cast<float>(first.divisor);
  }
  for (const auto& [rank, batch] : group.batches) {
    for (size_t i = 0; i < result.size(); ++i) store(type, batch.output, i, result[i]);
  }
}

std::unique_ptr<core::InFlight> FakeOp::start(Batch batch) {
  const uint64_t sequence = batch.sequence;
  FakeDelays delays = delays_;
  const int only = delays.only_polls_at_sequence;
  if (only >= 0 && static_cast<uint64_t>(only) != sequence) delays.op_polls = 0;
  if (!enqueues_) {
    meeting_->post(rank_, std::move(batch));
    return std::make_unique<FakeFlight>(meeting_, sequence, delays);
  }
  const bool fails = static_cast<int64_t>(sequence) == delays_.fail_op_at_sequence;
  // As a kernel of NCCL does: it begins when the queue reaches it, and holds the queue until all
  // ranks have begun theirs.
  const auto kernel = [meeting = meeting_, aborted = aborted_, rank = rank_, sequence, fails,
                       waiting = std::optional(batch)]() mutable {
    if (waiting && !fails && !*aborted) meeting->post(rank, *waiting);
    waiting.reset();
    return meeting->complete(sequence) || *aborted;
  };
  return std::make_unique<EnqueuedFlight>(static_cast<FakeQueue&>(*batch.queue), kernel, fails,
                                          delays.op_polls);
}

FakeDomain::FakeDomain(DeviceKind device)
    : device_(device), queue_(std::make_unique<ImmediateQueue>()) {}

FakeDomain::FakeDomain(DeviceKind device, std::shared_ptr<FakeDevice> on)
    : device_(device), on_(std::move(on)), queue_(std::make_unique<FakeQueue>(*on_)) {}

std::shared_ptr<std::byte> FakeDomain::allocate(size_t bytes) {
  ++allocations_;
  *bytes_held_ += bytes;
  std::shared_ptr<std::byte> memory(new std::byte[bytes], [bytes, held = bytes_held_](auto* data) {
    *held -= bytes;
    delete[] data;
  });
  std::fill_n(reinterpret_cast<float*>(memory.get()), bytes / sizeof(float),
              std::numeric_limits<float>::quiet_NaN());
  return memory;
}

std::shared_ptr<core::ScratchPool> scratch_of(std::unique_ptr<core::MemoryDomain> domain,
                                              size_t bytes_max) {
  std::vector<std::unique_ptr<core::MemoryDomain>> domains;
  domains.push_back(std::move(domain));
  return std::make_shared<core::ScratchPool>(std::move(domains), bytes_max);
}

bool FakeEvent::happened() {
  if (polls_-- > 0) return false;
  if (fails_) throw Error(ErrorCode::OperationFailed, "the fake device failed");
  return true;
}

void FakeEvent::wait() {
  while (!happened()) std::this_thread::yield();
}

}  // namespace horon::test
