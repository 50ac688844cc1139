// One rank whose op does not reach its tensors: they are copied to scratch and back, in two queues
// of a device that is turned by hand. Its op acts as one of two ranks that have the same tensors.
#pragma once

#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/base/timeline.h"
#include "horon/core/execution/executor.h"
#include "horon/tests/support/fake_device.h"

namespace horon::core::staged_world {

class ElsewhereDomain final : public MemoryDomain {
 public:
  explicit ElsewhereDomain(const test::FakeDevice& device) : there_(device), back_(device) {}
  DeviceKind device() const override { return DeviceKind::Cuda; }
  bool ops_reach_tensors() const override { return false; }
  // True from the `opens_in`-th call on.
  bool is_open() override { return opens_in == 0 || --opens_in == 0; }
  // True from the `makes_in`-th call on.
  bool has_at_hand(size_t /*bytes*/) override { return makes_in == 0 || --makes_in == 0; }
  // Full of NaN, so that a reduction of memory that is not copied yet shows.
  std::shared_ptr<std::byte> allocate(size_t bytes) override {
    if (bytes == 0) return nullptr;
    const auto memory = std::make_shared<std::vector<float>>(
        bytes / sizeof(float) + 1, std::numeric_limits<float>::quiet_NaN());
    latest = memory;
    return {memory, reinterpret_cast<std::byte*>(memory->data())};
  }
  MemoryQueue& queue() override { return there_; }
  MemoryQueue& queue_back() override { return back_; }

  int opens_in = 0;
  int makes_in = 0;
  std::weak_ptr<const void> latest;  // memory that was allocated

 private:
  test::FakeQueue there_, back_;
};

// What the op is to do, and what it has seen.
struct OpScript {
  int polls_max = 0;  // before a batch ends, at random
  int fails_at = -1;  // the n-th batch that it is given fails in step()
  // Called for the n-th batch until it returns true, which lets the batch end; null: at once.
  std::function<bool(size_t n)> may_end;
  std::vector<Batch> started;  // each batch that it was given
  size_t ended = 0;
  size_t destroyed = 0;
  bool saw_other_than_zero = false;  // in what it was given
  std::mt19937 random{1};
};

inline float float_of(DataType type, const std::byte* at) {
  uint32_t bits = 0;
  if (type == DataType::Float32) {
    std::memcpy(&bits, at, sizeof(bits));
    return std::bit_cast<float>(bits);
  }
  std::memcpy(reinterpret_cast<std::byte*>(&bits) + 2, at, 2);
  return std::bit_cast<float>(bits);
}

// Takes Float32 and BFloat16. Allreduce: the result is twice the input, which is exact. Broadcast:
// the root keeps its elements, and another rank gets 1, 2, ..., counted on from batch to batch.
class TwoRanksOp final : public CollectiveOp {
 public:
  explicit TwoRanksOp(std::shared_ptr<OpScript> script) : script_(std::move(script)) {}
  std::string_view name() const override { return "two_ranks"; }
  std::string refusal(const BatchFacts&) const override { return ""; }
  bool same_in_parts(const Batch&) const override { return true; }
  std::unique_ptr<InFlight> start(Batch batch) override {
    script_->started.push_back(batch);
    const float first = static_cast<float>(received_ + 1);
    if (batch.kind == CollectiveKind::Broadcast) received_ += batch.count;
    return std::make_unique<Flight>(script_, std::move(batch), first);
  }

 private:
  class Flight final : public InFlight {
   public:
    Flight(std::shared_ptr<OpScript> script, Batch batch, float first)
        : script_(std::move(script)), batch_(std::move(batch)), first_(first) {
      index_ = script_->started.size() - 1;
      polls_ = std::uniform_int_distribution(0, script_->polls_max)(script_->random);
    }
    ~Flight() override { ++script_->destroyed; }
    Progress step() override {
      if (static_cast<int>(index_) == script_->fails_at) {
        throw Error(ErrorCode::OperationFailed, "the other rank is gone");
      }
      if (polls_-- > 0) return Progress::Polling;
      if (script_->may_end != nullptr && !script_->may_end(index_)) return Progress::Polling;
      for (int64_t i = 0; i < batch_.count; ++i) exchange(i);
      ++script_->ended;
      return Progress::Done;
    }

   private:
    void exchange(int64_t i) {
      const size_t size = size_of(batch_.dtype);
      std::byte* const at = batch_.output + static_cast<size_t>(i) * size;
      const float mine = float_of(batch_.dtype, at);
      if (batch_.kind == CollectiveKind::Broadcast && batch_.root == 0) return;
      script_->saw_other_than_zero = script_->saw_other_than_zero || mine != 0;
      const float result =
          batch_.kind == CollectiveKind::Broadcast ? first_ + static_cast<float>(i) : 2 * mine;
      const auto bits = std::bit_cast<uint32_t>(result);
      std::memcpy(at, reinterpret_cast<const std::byte*>(&bits) + (4 - size), size);
    }

    const std::shared_ptr<OpScript> script_;
    const Batch batch_;
    const float first_;
    size_t index_ = 0;
    int polls_ = 0;
  };

  const std::shared_ptr<OpScript> script_;
  int64_t received_ = 0;
};

// Keeps the spans that are drawn, as "track: detail".
class Bars final : public Timeline {
 public:
  void span(std::string_view track, std::string_view, Clock::time_point begin,
            Clock::time_point end, std::string_view detail) override {
    all.push_back(concat(track, ": ", detail));
    EXPECT_LE(begin, end);
  }
  void counter(std::string_view, Clock::time_point, uint64_t) override {}
  void flush() override {}

  std::vector<std::string> all;
};

struct StagedRank {
  // `op`: null means a TwoRanksOp. This is rank `rank` of `size`.
  explicit StagedRank(test::FakeDevice::Options options = {},
                      size_t scratch_bytes_max = ScratchPool::kNoLimit,
                      std::unique_ptr<CollectiveOp> op = nullptr, int rank = 0, int size = 2) {
    options.by_hand = true;
    device = std::make_unique<test::FakeDevice>(options);
    script->random.seed(options.seed);
    script->polls_max = 20 * options.delay_max;  // so the queues are empty from time to time
    std::vector<std::unique_ptr<CollectiveOp>> ops;
    if (op == nullptr) op = std::make_unique<TwoRanksOp>(script);
    ops.push_back(std::move(op));
    Executor::Parts parts;
    parts.rank = rank;
    parts.size = size;
    parts.ops = std::make_shared<OpTable>(std::move(ops), "auto");
    auto elsewhere = std::make_unique<ElsewhereDomain>(*device);
    domain = elsewhere.get();
    parts.scratch = scratch = test::scratch_of(std::move(elsewhere), scratch_bytes_max);
    parts.timeline = bars;
    executor = std::make_unique<Executor>(std::move(parts));
  }

  Executor::Pace step() {
    (void)device->turn();
    const Executor::Pace pace = executor->step(finished, enqueued);
    EXPECT_NE(pace, Executor::Pace::Ringing) << "nothing here rings";
    return pace;
  }
  // Steps until it is idle. False: it never is.
  bool run() {
    for (int i = 0; i < 1'000'000; ++i) {
      if (step() == Executor::Pace::Idle) return true;
    }
    return false;
  }

  std::shared_ptr<OpScript> script = std::make_shared<OpScript>();
  std::unique_ptr<test::FakeDevice> device;
  std::shared_ptr<ScratchPool> scratch;
  ElsewhereDomain* domain = nullptr;  // of the scratch
  std::shared_ptr<Bars> bars = std::make_shared<Bars>();
  std::unique_ptr<Executor> executor;
  std::vector<FinishedBatch> finished;
  std::vector<EnqueuedBatch> enqueued;
};

}  // namespace horon::core::staged_world
