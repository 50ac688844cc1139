// A step of a collective between hosts does a bounded piece of work, however many ranks there are
// and however many messages have come: the loop serves other batches, and peers, between the steps.
#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "horon/core/base/text.h"
#include "horon/ops/hierarchical/hierarchical_allreduce.h"
#include "horon/ops/hierarchical/hosts_exchange.h"
#include "horon/ops/hierarchical/message_exchange.h"
#include "horon/tests/ops/hierarchical/thread_hosts.h"
#include "horon/tests/support/quick_messages.h"

namespace horon::ops {
namespace {

// A batch of bytes of value 1, in memory that the other ranks can map.
struct Ones {
  Ones(const World& world, CollectiveKind kind, int64_t elements, int root = 0)
      : Ones(world, kind, std::vector<int64_t>(static_cast<size_t>(world.size), elements), root) {}
  // `blocks`: elements of each rank's block. Broadcast and allreduce: the same number for all.
  Ones(const World& world, CollectiveKind kind, const std::vector<int64_t>& blocks, int root) {
    const int64_t all = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
    const int64_t own = blocks.at(static_cast<size_t>(world.rank));
    const bool sends_all =
        kind == CollectiveKind::Reducescatter || kind == CollectiveKind::Alltoall;
    const bool gets_all = kind == CollectiveKind::Allgather || kind == CollectiveKind::Alltoall;
    in = sends_all ? all : own;
    out = gets_all ? all : own;
    input = take(world, in);
    output = take(world, out);
    std::fill_n(reinterpret_cast<int8_t*>(input.get()), in, int8_t{1});
    batch.kind = kind;
    batch.dtype = DataType::Int8;
    batch.root = root;
    batch.count = kind == CollectiveKind::Alltoall ? all : own;
    batch.input = input.get();
    batch.output = output.get();
    if (sends_all) batch.send_counts = blocks;
    if (gets_all) batch.receive_counts = blocks;
  }
  static std::shared_ptr<std::byte> take(const World& world, int64_t bytes) {
    if (world.allocate) return world.allocate(static_cast<size_t>(bytes));
    return {new std::byte[static_cast<size_t>(bytes)], std::default_delete<std::byte[]>()};
  }
  void expect(int8_t each) const {
    const auto* const numbers = reinterpret_cast<const int8_t*>(output.get());
    EXPECT_EQ(std::count(numbers, numbers + out, each), out);
  }

  int64_t in = 0;  // elements
  int64_t out = 0;
  std::shared_ptr<std::byte> input, output;
  core::Batch batch;
};

std::unique_ptr<core::CollectiveOp> op_of(CollectiveKind kind, const BetweenHosts& parts) {
  if (kind == CollectiveKind::Allreduce) return std::make_unique<HierarchicalAllreduce>(parts);
  if (kind == CollectiveKind::Alltoall) {
    return std::make_unique<HierarchicalExchange>(
        std::make_shared<MessageExchange>(parts.messages, parts.topology.rank, parts.topology.size),
        kind);
  }
  return std::make_unique<HierarchicalExchange>(std::make_shared<HostsExchange>(parts), kind);
}

constexpr std::array kKindsInChunks = {CollectiveKind::Allreduce, CollectiveKind::Broadcast,
                                       CollectiveKind::Allgather, CollectiveKind::Reducescatter};

void expect_short_steps(core::InFlight& run, const QuickMessages& messages) {
  for (bool done = false; !done;) {
    const uint32_t posted = messages.posted();
    const int64_t sent = messages.sent();
    done = run.step() == core::Progress::Done;
    ASSERT_LE(messages.posted() - posted, 700);
    ASSERT_LE(messages.sent() - sent, 4 << 20);
  }
}

TEST(StepAmongManyRanks, PostsNoMoreThanItsShareOfTheMessagesOfAnAlltoall) {
  World world;
  world.rank = 3;
  world.size = 1000;
  for (const int64_t count : {1, 40'000}) {
    const auto messages = std::make_shared<QuickMessages>();
    MessageExchange exchange(messages, world.rank, world.size);
    const Ones ones(world, CollectiveKind::Alltoall, count);
    const auto run = exchange.start(ones.batch);
    expect_short_steps(*run, *messages);
    EXPECT_EQ(messages->posted(), 2 * (world.size - 1));
    EXPECT_EQ(messages->sent(), (world.size - 1) * count);
  }
}

TEST(StepAmongManyHosts, PostsNoMoreThanItsShareOfTheMessagesOfChunks) {
  World world;
  world.size = 300;
  std::vector<int> hosts(300);
  std::iota(hosts.begin(), hosts.end(), 0);
  for (const CollectiveKind kind : kKindsInChunks) {
    SCOPED_TRACE(to_string(kind));
    std::vector<std::unique_ptr<core::MemoryDomain>> domains;
    domains.push_back(std::make_unique<HostMemory>(nullptr));
    BetweenHosts parts;
    parts.topology = core::make_topology(0, hosts);
    const auto messages = std::make_shared<QuickMessages>();
    parts.messages = messages;
    parts.scratch = std::make_shared<core::ScratchPool>(std::move(domains));
    const auto op = op_of(kind, parts);
    const bool is_long = kind == CollectiveKind::Allreduce || kind == CollectiveKind::Broadcast;
    const Ones ones(world, kind, is_long ? 4 << 20 : 40'000);
    const auto run = op->start(ones.batch);
    expect_short_steps(*run, *messages);
    EXPECT_GT(messages->sent(), 4 << 20) << "that is no test";
  }
}

// Also in the longest pieces that can be asked for.
TEST(StepAmongTwoHosts, SendsAnAllreduceInPiecesThatAreAskedFor) {
  World world;
  world.size = 2;
  constexpr int64_t elements = 4 << 20;
  const std::map<int64_t, int64_t> pieces = {
      {0, 74}, {1, 1024}, {100'000, 42}, {512 << 10, 8}, {elements, 8}};
  for (const auto& [piece_bytes, expected] : pieces) {
    std::vector<std::unique_ptr<core::MemoryDomain>> domains;
    domains.push_back(std::make_unique<HostMemory>(nullptr));
    BetweenHosts parts;
    parts.topology = core::make_topology(0, std::vector{0, 1});
    const auto messages = std::make_shared<QuickMessages>();
    parts.messages = messages;
    parts.scratch = std::make_shared<core::ScratchPool>(std::move(domains));
    HierarchicalAllreduce op(parts);
    Ones ones(world, CollectiveKind::Allreduce, elements);
    ones.batch.piece_bytes = piece_bytes;
    expect_short_steps(*op.start(ones.batch), *messages);
    EXPECT_EQ(messages->posted(), 2 * expected) << piece_bytes;  // each sent, and each received
    EXPECT_EQ(messages->sent(), elements);
  }
}

// A step copies a part of it, and the messages are over before.
TEST(StepAmongTwoHosts, CopiesAllOfALongBlockThatARankSendsItself) {
  World world;
  world.size = 2;
  constexpr int64_t own = 3 << 20;
  MessageExchange exchange(std::make_shared<QuickMessages>(), world.rank, world.size);
  const Ones ones(world, CollectiveKind::Alltoall, {own, 10}, 0);
  std::fill_n(ones.output.get(), own, std::byte{0});
  const auto run = exchange.start(ones.batch);
  while (run->step() != core::Progress::Done) {
  }
  const auto* const numbers = reinterpret_cast<const int8_t*>(ones.output.get());
  EXPECT_EQ(std::count(numbers, numbers + own, 1), own);
}

// Messages to ranks that receive nothing. Sends are over at once, as short messages of MPI are, but
// sends that are to be awaited are not. What the others send has come already, or never comes.
class NobodyReceives final : public Messages {
 public:
  struct Sent {
    int64_t bytes = 0;
    int64_t awaited = 0;  // messages
  };
  explicit NobodyReceives(bool others_send) : others_send_(others_send) {}

  Id send(int to, int, const std::byte*, int64_t bytes) override {
    note(to, bytes);
    return kOver;
  }
  Id send_and_await(int to, int, const std::byte*, int64_t bytes) override {
    ++note(to, bytes).awaited;
    return kUnderWay;
  }
  Id receive(int, int, std::byte*, int64_t) override { return others_send_ ? kOver : kUnderWay; }
  void progress() override {}
  bool take_if_over(Id id) override { return id == kOver; }
  const std::map<int, Sent>& sent() const { return sent_; }  // by receiver

 private:
  static constexpr Id kOver = 0;
  static constexpr Id kUnderWay = 1;
  Sent& note(int to, int64_t bytes) {
    Sent& sent = sent_[to];
    sent.bytes += bytes;
    return sent;
  }

  const bool others_send_;
  std::map<int, Sent> sent_;
};

// What one rank of `hosts` hosts, with one rank each, sends before it waits for its receivers. If
// one rank has or gets all the data, rank 0 does.
std::map<int, NobodyReceives::Sent> sent_ahead(CollectiveKind kind, int hosts, int64_t elements) {
  World world;
  world.size = hosts;
  world.rank = kind == CollectiveKind::Reducescatter ? 1 : 0;
  std::vector<int> host_of(static_cast<size_t>(hosts));
  std::iota(host_of.begin(), host_of.end(), 0);
  std::vector<std::unique_ptr<core::MemoryDomain>> domains;
  domains.push_back(std::make_unique<HostMemory>(nullptr));
  // The blocks that an allgather passes on have come.
  const auto messages = std::make_shared<NobodyReceives>(kind == CollectiveKind::Allgather);
  BetweenHosts parts;
  parts.topology = core::make_topology(world.rank, host_of);
  parts.messages = messages;
  parts.scratch = std::make_shared<core::ScratchPool>(std::move(domains));
  const bool is_alltoall = kind == CollectiveKind::Alltoall;
  std::shared_ptr<ExchangeMachine> machine;
  if (is_alltoall) {
    machine = std::make_shared<MessageExchange>(messages, world.rank, hosts);
  } else {
    machine = std::make_shared<HostsExchange>(parts);
  }
  HierarchicalExchange op(machine, kind);
  Ones ones(world, kind, kind == CollectiveKind::Broadcast ? elements : elements / hosts);
  if (kind == CollectiveKind::Reducescatter) {
    std::vector<int64_t> counts(static_cast<size_t>(hosts));
    counts[0] = ones.in;
    ones.batch.send_counts = counts;
    ones.batch.count = 0;
  }
  const auto run = op.start(ones.batch);
  for (int idle = 0; idle < 100;) {
    const core::Progress progress = run->step();
    if (progress == core::Progress::Done) break;
    const bool drives = progress == core::Progress::Driving;
    if (drives || progress == core::Progress::Polling) ++idle;
  }
  return messages->sent();
}

// How a rank waits once it has sent all that it can, and gets nothing; one rank on each host.
core::Progress how_it_waits(CollectiveKind kind, int hosts, int rank, int64_t elements) {
  World world;
  world.size = hosts;
  world.rank = rank;
  std::vector<int> host_of(static_cast<size_t>(hosts));
  std::iota(host_of.begin(), host_of.end(), 0);
  std::vector<std::unique_ptr<core::MemoryDomain>> domains;
  domains.push_back(std::make_unique<HostMemory>(nullptr));
  BetweenHosts parts;
  parts.topology = core::make_topology(rank, host_of);
  parts.messages = std::make_shared<NobodyReceives>(/*others_send=*/false);
  parts.scratch = std::make_shared<core::ScratchPool>(std::move(domains));
  const auto op = op_of(kind, parts);
  const Ones ones(world, kind, elements);
  const auto run = op->start(ones.batch);
  core::Progress progress = core::Progress::Advanced;
  while (progress == core::Progress::Advanced) progress = run->step();
  return progress;
}

// A rank polls more often if other hosts wait for what it sends next.
TEST(WaitingRank, IsDrivenWhereOthersWaitForIt) {
  using core::Progress;
  EXPECT_EQ(how_it_waits(CollectiveKind::Broadcast, 64, 1, 4000), Progress::Driving);  // passes on
  EXPECT_EQ(how_it_waits(CollectiveKind::Broadcast, 64, 63, 4000), Progress::Polling);
  EXPECT_EQ(how_it_waits(CollectiveKind::Broadcast, 2, 1, 64 << 20), Progress::Driving);
  EXPECT_EQ(how_it_waits(CollectiveKind::Allreduce, 2, 1, 16), Progress::Polling);  // one round
  EXPECT_EQ(how_it_waits(CollectiveKind::Allreduce, 64, 1, 64 << 10), Progress::Driving);
  EXPECT_EQ(how_it_waits(CollectiveKind::Alltoall, 2, 1, 16), Progress::Polling);  // all is posted
  EXPECT_EQ(how_it_waits(CollectiveKind::Alltoall, 2, 1, 16 << 20), Progress::Driving);
  EXPECT_EQ(how_it_waits(CollectiveKind::Alltoall, 64, 1, 4000), Progress::Polling);
}

// Receivers must store messages that they do not expect yet.
TEST(Sender, DoesNotRunAheadOfItsReceiversWithoutALimit) {
  for (const int hosts : {2, 5, 16, 64}) {
    for (const CollectiveKind kind : {CollectiveKind::Broadcast, CollectiveKind::Allgather,
                                      CollectiveKind::Reducescatter, CollectiveKind::Alltoall}) {
      SCOPED_TRACE(core::concat(to_string(kind), ", ", hosts, " hosts"));
      const auto sent = sent_ahead(kind, hosts, 64 << 20);
      EXPECT_FALSE(sent.empty());
      for (const auto& [to, of_receiver] : sent) {
        EXPECT_LE(of_receiver.bytes, Messages::kBytesAhead * (of_receiver.awaited + 1)) << to;
        EXPECT_LE(of_receiver.awaited, 32) << to;
        EXPECT_LT(of_receiver.bytes, 16 << 20) << to;
      }
    }
  }
}

// Each of the broadcasts has fewer messages than a sender may be ahead.
TEST(Sender, DoesNotRunAheadFromOneCollectiveToTheNext) {
  World world;
  world.size = 2;
  std::vector<std::unique_ptr<core::MemoryDomain>> domains;
  domains.push_back(std::make_unique<HostMemory>(nullptr));
  const auto messages = std::make_shared<NobodyReceives>(/*others_send=*/false);
  BetweenHosts parts;
  parts.topology = core::make_topology(0, std::vector{0, 1});
  parts.messages = messages;
  parts.scratch = std::make_shared<core::ScratchPool>(std::move(domains));
  HierarchicalExchange op(std::make_shared<HostsExchange>(parts), CollectiveKind::Broadcast);
  const Ones ones(world, CollectiveKind::Broadcast, 25'000);
  core::Progress progress = core::Progress::Done;
  for (int batch = 0; batch < 100 && progress == core::Progress::Done; ++batch) {
    const auto run = op.start(ones.batch);
    do {
      progress = run->step();
    } while (progress == core::Progress::Advanced);
  }
  EXPECT_NE(progress, core::Progress::Done);
  EXPECT_LE(messages->sent().at(1).bytes, Messages::kBytesAhead);
}

// No receive is over before `count` messages have come; then all of them are.
class AllAtOnce final : public Messages {
 public:
  AllAtOnce(MessageHub& hub, int rank, size_t count) : messages_(hub, rank), count_(count) {}

  Id send(int to, int tag, const std::byte* data, int64_t bytes) override {
    return messages_.send(to, tag, data, bytes);
  }
  Id receive(int from, int tag, std::byte* data, int64_t bytes) override {
    return *received_.insert(messages_.receive(from, tag, data, bytes)).first;
  }
  void progress() override {
    messages_.progress();
    const auto has_come = [this](Id id) { return messages_.take_if_over(id); };
    all_here_ = all_here_ || (received_.size() >= count_ &&
                              std::all_of(received_.begin(), received_.end(), has_come));
  }
  bool take_if_over(Id id) override {
    const bool is_receive = received_.contains(id);
    if ((is_receive && !all_here_) || !messages_.take_if_over(id)) return false;
    if (is_receive) ++taken_;
    return true;
  }
  int64_t taken() const { return taken_; }  // of those that are received

 private:
  ThreadMessages messages_;
  const size_t count_;
  std::set<Id> received_;
  bool all_here_ = false;
  int64_t taken_ = 0;
};

class StepWithManyMessages : public testing::TestWithParam<CollectiveKind> {};

// Rank 0 drives all chunks of its host. Those of the other host come all at once.
TEST_P(StepWithManyMessages, WritesNoMoreThanItsShareOfTheMemory) {
  const CollectiveKind kind = GetParam();
  constexpr int64_t at_once = 16;
  constexpr int local_ranks = 8;
  constexpr int64_t chunks = 24;
  // No more memory than it takes for rank 0 to receive that many chunks: under ThreadSanitizer a
  // page fault may take a millisecond.
  std::vector<int64_t> blocks(local_ranks + 1, chunks * kMessageBytes);
  if (kind == CollectiveKind::Allgather) std::fill_n(blocks.begin(), local_ranks, 0);
  if (kind == CollectiveKind::Reducescatter) {
    std::fill_n(blocks.begin(), local_ranks, chunks / local_ranks * kMessageBytes);
    blocks.back() = 0;
  }
  std::shared_ptr<AllAtOnce> of_first_rank;
  const auto body = [&](const World& world, const BetweenHosts& parts) {
    const auto op = op_of(kind, parts);
    const Ones ones(world, kind, blocks, local_ranks);
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    in_flight.push_back(op->start(ones.batch));
    if (world.rank == 0) {
      int64_t most_in_step = 0;
      for (bool done = false; !done;) {
        const int64_t before = of_first_rank->taken();
        const core::Progress progress = in_flight.front()->step();
        done = progress == core::Progress::Done;
        most_in_step = std::max(most_in_step, of_first_rank->taken() - before);
        if (progress != core::Progress::Advanced) std::this_thread::yield();
      }
      const int64_t takers = kind == CollectiveKind::Reducescatter ? 1 : local_ranks;
      EXPECT_LE(most_in_step * kMessageBytes * takers, 4 << 20) << most_in_step << " chunks";
    } else {
      std::mt19937_64 random(1);
      drive(world, std::move(in_flight), random);
    }
    const bool adds = kind == CollectiveKind::Allreduce || kind == CollectiveKind::Reducescatter;
    ones.expect(adds ? local_ranks + 1 : 1);
  };
  std::vector<int> hosts(local_ranks, 0);
  hosts.push_back(1);
  with_thread_hosts(hosts, body, [&](MessageHub& hub, int rank) -> std::shared_ptr<Messages> {
    if (rank > 0) return thread_messages(hub, rank);
    of_first_rank = std::make_shared<AllAtOnce>(hub, rank, at_once);
    return of_first_rank;
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, StepWithManyMessages, testing::ValuesIn(kKindsInChunks),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

}  // namespace
}  // namespace horon::ops
