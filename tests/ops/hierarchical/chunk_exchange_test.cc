// Messages of different chunks that are in flight at the same time must not be taken for each
// other: between two peers, messages of one tag only meet in the order in which they are posted.
#include "horon/ops/hierarchical/chunk_exchange.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include <gtest/gtest.h>

#include "horon/ops/hierarchical/hierarchical_allreduce.h"
#include "horon/ops/host/host_memory.h"
#include "horon/tests/support/tag_check.h"

namespace horon::ops {
namespace {

// The first lane of two hosts that have `lanes` of them, in two rounds.
class OneLane {
 public:
  static constexpr int kChunks = 32;  // as many as are in flight at once
  static constexpr int64_t kElements = 128;

  OneLane(MessageHub& hub, int host, int lanes) : messages_(hub, host) {
    layout_.hosts = 2;
    layout_.host = host;
    layout_.lanes = lanes;
    layout_.most_ranks = 2;
    layout_.peers = {0, 1};
    batch_.count = kElements * kChunks * lanes;
    ExchangePlan plan;
    plan.count = batch_.count;
    plan.chunk_elements = kElements;
    plan.chunks = int64_t{kChunks} * lanes;
    plan.chunks_at_once = kChunks;
    context_ = std::make_unique<ExchangeContext>(messages_, layout_, batch_, plan, 0);
    memory_.resize(ChunkExchange::memory_bytes(layout_, plan) / sizeof(Line) * kChunks);
    for (int i = 0; i < kChunks; ++i) {
      exchanges_.emplace_back(*context_,
                              memory_[memory_.size() / kChunks * static_cast<size_t>(i)].data());
    }
  }

  // Element e of chunk i of the lane: 1000 i + e on both hosts.
  void begin() {
    const size_t elements = size_t{kChunks} * kElements;
    input_.resize(elements);
    output_.resize(elements);
    for (size_t i = 0; i < elements; ++i) {
      input_[i] = static_cast<float>(1000 * (i / kElements) + i % kElements);
    }
    for (int64_t i = 0; i < kChunks; ++i) {
      const auto* const input = reinterpret_cast<const std::byte*>(&input_[place(i)]);
      auto* const output = reinterpret_cast<std::byte*>(&output_[place(i)]);
      exchanges_[static_cast<size_t>(i)].begin(i * layout_.lanes, {&input, 1}, {&output, 1});
    }
  }
  // Advances the chunks in their order or backwards, as when slots become free in that order.
  void advance(bool backwards) {
    messages_.progress();
    for (size_t i = 0; i < kChunks; ++i) {
      exchanges_[backwards ? kChunks - 1 - i : i].advance();
    }
  }
  bool over() const {
    return std::all_of(exchanges_.begin(), exchanges_.end(),
                       [](const ChunkExchange& one) { return one.over(); });
  }
  void check() const {
    for (size_t i = 0; i < input_.size(); ++i) ASSERT_EQ(output_[i], 2 * input_[i]) << i;
  }

 private:
  struct alignas(64) Line : std::array<std::byte, 64> {};
  static size_t place(int64_t chunk) { return static_cast<size_t>(chunk * kElements); }

  TagCheck messages_;
  HostsLayout layout_;
  core::Batch batch_;
  std::unique_ptr<ExchangeContext> context_;
  std::vector<Line> memory_;
  std::vector<ChunkExchange> exchanges_;
  std::vector<float> input_, output_;
};

class ChunkExchangeLanes : public testing::TestWithParam<int> {};

TEST_P(ChunkExchangeLanes, EachHostMayAdvanceItsChunksInItsOwnOrder) {
  MessageHub hub;
  OneLane first(hub, 0, GetParam());
  OneLane second(hub, 1, GetParam());
  first.begin();
  second.begin();
  while (!first.over() || !second.over()) {
    first.advance(false);
    second.advance(true);
  }
  first.check();
  second.check();
  EXPECT_TRUE(hub.empty());
}

INSTANTIATE_TEST_SUITE_P(Lanes, ChunkExchangeLanes, testing::Values(1, 3, 32, 64, 128));

// What is sent leaves some time after it was posted, and until then its memory belongs to it.
class LateSends final : public Messages {
 public:
  LateSends(MessageHub& hub, int rank) : messages_(hub, rank) {}

  Id send(int to, int tag, const std::byte* data, int64_t bytes) override {
    waiting_.push_back({next_, to, tag, data, bytes});
    return next_++;
  }
  Id receive(int from, int tag, std::byte* data, int64_t bytes) override {
    for (const Waiting& sent : waiting_) {
      EXPECT_TRUE(data + bytes <= sent.data || sent.data + sent.bytes <= data);
    }
    posted_[next_] = messages_.receive(from, tag, data, bytes);
    return next_++;
  }
  void progress() override {
    constexpr int late = 50;
    messages_.progress();
    if (++calls_ % late != 0 || waiting_.empty()) return;
    const Waiting& sent = waiting_.front();
    posted_[sent.id] = messages_.send(sent.to, sent.tag, sent.data, sent.bytes);
    waiting_.pop_front();
  }
  bool take_if_over(Id id) override {
    const auto posted = posted_.find(id);
    return posted != posted_.end() && messages_.take_if_over(posted->second);
  }

 private:
  struct Waiting {
    Id id;
    int to;
    int tag;
    const std::byte* data;
    int64_t bytes;
  };

  ThreadMessages messages_;
  Id next_ = 0;
  int calls_ = 0;
  std::deque<Waiting> waiting_;
  std::map<Id, Id> posted_;
};

// One host's lane: in place, one chunk after the other in the same memory.
class OneSlot {
 public:
  static constexpr int64_t kChunks = 4;
  static constexpr int64_t kElements = 128;

  OneSlot(std::unique_ptr<Messages> messages, int host, bool one_round, double prescale)
      : messages_(std::move(messages)), numbers_(size_t{kChunks} * kElements) {
    layout_.hosts = 2;
    layout_.host = host;
    layout_.peers = {0, 1};
    core::Batch batch;
    batch.count = std::ssize(numbers_);
    batch.prescale = prescale;
    ExchangePlan plan;
    plan.one_round = one_round;
    plan.count = batch.count;
    plan.chunk_elements = kElements;
    plan.chunks = kChunks;
    context_ = std::make_unique<ExchangeContext>(*messages_, layout_, batch, plan, 0);
    memory_.resize(ChunkExchange::memory_bytes(layout_, plan) / sizeof(Line));
    exchange_ = std::make_unique<ChunkExchange>(*context_, memory_[0].data());
    std::iota(numbers_.begin(), numbers_.end(), 1.0F);
  }
  void step() {
    if (exchange_->over() && begun_ < kChunks) {
      auto* const chunk = reinterpret_cast<std::byte*>(numbers_.data() + begun_ * kElements);
      const std::byte* const input = chunk;
      exchange_->begin(begun_++, {&input, 1}, {&chunk, 1});
    }
    messages_->progress();
    exchange_->advance();
  }
  bool over() const { return begun_ == kChunks && exchange_->over(); }
  // Each number is the same on both hosts.
  void check(float factor) const {
    for (size_t i = 0; i < numbers_.size(); ++i) {
      ASSERT_EQ(numbers_[i], 2 * factor * static_cast<float>(i + 1)) << i;
    }
  }

 private:
  struct alignas(64) Line : std::array<std::byte, 64> {};

  const std::unique_ptr<Messages> messages_;
  HostsLayout layout_;
  std::unique_ptr<ExchangeContext> context_;
  std::vector<Line> memory_;
  std::unique_ptr<ChunkExchange> exchange_;
  std::vector<float> numbers_;
  int64_t begun_ = 0;
};

// What is sent is the input, or a sum where it is scaled first.
TEST(ChunkExchangeMemory, IsLeftAloneUntilItIsSent) {
  for (const bool one_round : {true, false}) {
    for (const float prescale : {1.0F, 2.0F}) {
      MessageHub hub;
      OneSlot first(std::make_unique<LateSends>(hub, 0), 0, one_round, prescale);
      OneSlot second(std::make_unique<ThreadMessages>(hub, 1), 1, one_round, prescale);
      while (!first.over() || !second.over()) {
        first.step();
        second.step();
      }
      first.check(prescale);
      second.check(prescale);
      EXPECT_TRUE(hub.empty());
    }
  }
}

// One rank on each of two hosts.
class OneRank {
 public:
  OneRank(MessageHub& hub, int rank, int64_t elements)
      : messages_(std::make_shared<TagCheck>(hub, rank)), sums_(static_cast<size_t>(elements), 1) {
    std::vector<std::unique_ptr<core::MemoryDomain>> domains;
    domains.push_back(std::make_unique<HostMemory>(nullptr));
    BetweenHosts parts;
    parts.topology = core::make_topology(rank, std::array{0, 1});
    parts.messages = messages_;
    parts.scratch = std::make_shared<core::ScratchPool>(std::move(domains));
    op_ = std::make_unique<HierarchicalAllreduce>(std::move(parts));
    core::Batch batch;
    batch.dtype = DataType::Int8;
    batch.count = elements;
    batch.output = reinterpret_cast<std::byte*>(sums_.data());
    batch.input = batch.output;
    in_flight_ = op_->start(std::move(batch));
  }
  TagCheck& messages() { return *messages_; }
  void step() { over_ = over_ || in_flight_->step() == core::Progress::Done; }
  bool over() const { return over_; }
  int64_t twos() const { return std::count(sums_.begin(), sums_.end(), 2); }

 private:
  std::shared_ptr<TagCheck> messages_;
  std::vector<int8_t> sums_;
  std::unique_ptr<HierarchicalAllreduce> op_;
  std::unique_ptr<core::InFlight> in_flight_;
  bool over_ = false;
};

TEST(HierarchicalTags, AChunkThatIsLateKeepsItsTags) {
  MessageHub hub;
  const int64_t elements = kMessageBytes * 600;  // chunks; there are tags for 512
  OneRank first(hub, 0, elements);
  OneRank second(hub, 1, elements);
  first.messages().delay_first_receive();
  while (!first.over() || !second.over()) {
    first.step();
    second.step();
  }
  EXPECT_EQ(first.twos(), elements);
  EXPECT_EQ(second.twos(), elements);
  EXPECT_GT(first.messages().most_under_way(), 2U);
  EXPECT_LT(first.messages().largest_tag(), Messages::kTags);
  EXPECT_TRUE(hub.empty());
}

}  // namespace
}  // namespace horon::ops
