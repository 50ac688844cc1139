// Random programs between hosts, among threads of one process: collectives of every kind, by all
// ops of a set, which share their messages.
#include <array>
#include <numeric>

#include <gtest/gtest.h>

#include "horon/ops/hierarchical/hierarchical_allreduce.h"
#include "horon/ops/hierarchical/hosts_exchange.h"
#include "horon/ops/hierarchical/message_exchange.h"
#include "horon/tests/ops/contract_case.h"
#include "horon/tests/ops/hierarchical/thread_hosts.h"

namespace horon::ops {
namespace {

int32_t number_of(int rank, int64_t i) { return static_cast<int32_t>(1000 * rank + i); }

// What every rank knows of one collective. Rank r's element i is number_of(r, i).
class RandomCall {
 public:
  RandomCall(uint64_t number, int size) : number_(number), size_(size) {
    constexpr std::array kinds = {CollectiveKind::Broadcast,     CollectiveKind::Allgather,
                                  CollectiveKind::Reducescatter, CollectiveKind::Allreduce,
                                  CollectiveKind::Alltoall,      CollectiveKind::Gather,
                                  CollectiveKind::Scatter};
    const uint64_t bits = mix(number, 5, 11);
    kind_ = kinds.at(bits / 64 % kinds.size());
    root_ = static_cast<int>(bits / 7 % static_cast<uint64_t>(size));
    longest_ = bits % 3 == 0 ? 40'000 : 300;
  }
  CollectiveKind kind() const { return kind_; }
  int root() const { return root_; }
  // The number of elements that go from one rank to another. Reducescatter: those of the block that
  // `to` gets. Allgather: of the block that `from` gives. Broadcast and allreduce: of the whole
  // tensor.
  int64_t block(int from, int to) const {
    if (kind_ == CollectiveKind::Gather && to != root_) return 0;
    if (kind_ == CollectiveKind::Scatter && from != root_) return 0;
    if (is_one_tensor()) return length(0, 0);
    if (kind_ == CollectiveKind::Allgather) return length(from, 0);
    if (kind_ == CollectiveKind::Reducescatter) return length(0, to);
    return length(from, to);
  }
  // Broadcast and allreduce.
  bool is_one_tensor() const {
    return kind_ == CollectiveKind::Broadcast || kind_ == CollectiveKind::Allreduce;
  }
  bool reduces() const { return core::reduces(kind_); }
  std::vector<int64_t> sent_by(int rank) const {
    std::vector<int64_t> counts;
    for (int to = 0; to < size_; ++to) counts.push_back(block(rank, to));
    return counts;
  }
  std::vector<int64_t> got_by(int rank) const {
    std::vector<int64_t> counts;
    for (int from = 0; from < size_; ++from) counts.push_back(block(from, rank));
    return counts;
  }
  // Elements.
  int64_t input_count(int rank) const {
    if (is_one_tensor() || kind_ == CollectiveKind::Allgather) return block(rank, 0);
    return sum(sent_by(rank));
  }
  int64_t output_count(int rank) const {
    if (is_one_tensor() || reduces()) return block(0, rank);
    return sum(got_by(rank));
  }
  int32_t expected(int rank, int64_t i) const {
    if (kind_ == CollectiveKind::Broadcast) return number_of(root_, i);
    if (reduces()) {
      int64_t before = 0;  // the blocks of the ranks before this one
      for (int to = 0; !is_one_tensor() && to < rank; ++to) before += block(0, to);
      int32_t total = 0;
      for (int from = 0; from < size_; ++from) total += number_of(from, before + i);
      return total;
    }
    int from = 0;
    for (; i >= block(from, rank); ++from) i -= block(from, rank);
    int64_t before = 0;  // what `from` has for the ranks before this one
    const bool has_one_block = kind_ == CollectiveKind::Allgather;
    for (int to = 0; !has_one_block && to < rank; ++to) before += block(from, to);
    return number_of(from, before + i);
  }

 private:
  static int64_t sum(const std::vector<int64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }
  int64_t length(int a, int b) const {
    const auto pair = static_cast<uint64_t>(a * size_ + b);
    return static_cast<int64_t>(mix(number_, pair, 3) % static_cast<uint64_t>(longest_));
  }

  const uint64_t number_;
  const int size_;
  CollectiveKind kind_ = CollectiveKind::Broadcast;
  int root_ = 0;
  int64_t longest_ = 0;
};

// One rank's part in a collective, in memory that the others can map, or can't.
class RandomRun {
 public:
  RandomRun(const World& world, uint64_t number) : world_(world), call_(number, world.size) {
    const uint64_t own = mix(number, static_cast<uint64_t>(world.rank), 9);
    input_ = take(call_.input_count(world.rank), own % 2 == 0);
    output_ = take(call_.output_count(world.rank), own / 2 % 2 == 0);
    auto* const numbers = reinterpret_cast<int32_t*>(input_.get());
    const int64_t given = call_.input_count(world.rank);
    for (int64_t i = 0; i < given; ++i) numbers[i] = number_of(world.rank, i);
    batch_.sequence = number;
    batch_.kind = call_.kind();
    batch_.dtype = DataType::Int32;
    batch_.root = call_.root();
    batch_.input = input_.get();
    batch_.output = output_.get();
    const bool one_output = call_.is_one_tensor() || call_.reduces();
    batch_.count = one_output ? call_.output_count(world.rank) : call_.input_count(world.rank);
    if (call_.is_one_tensor()) return;
    if (call_.kind() != CollectiveKind::Allgather) batch_.send_counts = call_.sent_by(world.rank);
    if (!call_.reduces()) batch_.receive_counts = call_.got_by(world.rank);
  }
  const core::Batch& batch() const { return batch_; }
  void check() const {
    const auto* const got = reinterpret_cast<const int32_t*>(output_.get());
    const int64_t count = call_.output_count(world_.rank);
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(got[i], call_.expected(world_.rank, i)) << to_string(call_.kind()) << ' ' << i;
    }
  }

 private:
  std::shared_ptr<std::byte> take(int64_t elements, bool shared) const {
    const auto bytes = static_cast<size_t>(std::max<int64_t>(elements, 1)) * sizeof(int32_t);
    if (shared) return world_.allocate(bytes);
    return {new std::byte[bytes], [](const std::byte* memory) { delete[] memory; }};
  }

  const World& world_;
  const RandomCall call_;
  core::Batch batch_;
  std::shared_ptr<std::byte> input_, output_;
};

class RandomPrograms : public testing::TestWithParam<std::vector<int>> {};

// All kinds, lengths, roots and places in one order, many in flight, stepped in any order.
TEST_P(RandomPrograms, InAnyOrder) {
  with_thread_hosts(GetParam(), [](const World& world, const BetweenHosts& parts) {
    HostsExchange in_chunks(parts);
    HierarchicalAllreduce allreduce(parts_of_second_op(parts));
    MessageExchange by_messages(parts.messages, world.rank, world.size);
    const auto start = [&](const core::Batch& batch) {
      switch (batch.kind) {
        case CollectiveKind::Allreduce:
          return allreduce.start(batch);
        case CollectiveKind::Alltoall:
        case CollectiveKind::Gather:
        case CollectiveKind::Scatter:
          return by_messages.start(batch);
        default:
          return in_chunks.start(batch);
      }
    };
    std::mt19937_64 random(static_cast<uint64_t>(world.rank) + 17);
    for (uint64_t program = 0; program < 6; ++program) {
      std::vector<std::unique_ptr<RandomRun>> runs;
      std::vector<std::unique_ptr<core::InFlight>> in_flight;
      for (uint64_t i = 0; i < 30; ++i) {
        runs.push_back(std::make_unique<RandomRun>(world, program * 1000 + i));
        in_flight.push_back(start(runs.back()->batch()));
      }
      drive(world, std::move(in_flight), random);
      for (const auto& run : runs) run->check();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Hosts, RandomPrograms,
                         testing::Values(std::vector{0, 0, 1}, std::vector{0, 1, 0, 1},
                                         std::vector{0, 0, 0, 1}, std::vector{0, 1, 2},
                                         std::vector{0, 1, 2, 1, 3}),
                         layout_name);

}  // namespace
}  // namespace horon::ops
