#include "horon/tests/ops/hierarchical/narrow_wire_contract.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/tests/ops/contract_case.h"

namespace horon::ops {
namespace {

constexpr int64_t kExactMax = kExactBytesMax / static_cast<int64_t>(sizeof(float));

struct NarrowCase {
  ReduceOp op = ReduceOp::Sum;
  int64_t count = 0;  // of the input
  bool in_place = true;
  bool registered = true;
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t piece_bytes = 0;
};

// Rank r is on host hosts[r].
struct NarrowJob {
  CollectiveKind kind = CollectiveKind::Allreduce;
  std::vector<int> hosts;
  WireType wire_type;
};

std::vector<std::byte> bytes_of(const std::vector<float>& numbers) {
  const auto* const begin = reinterpret_cast<const std::byte*>(numbers.data());
  return {begin, begin + numbers.size() * sizeof(float)};
}

// Describes the first difference of two vectors whose bytes differ.
std::string first_difference(const std::vector<float>& got, const std::vector<float>& expected) {
  size_t i = 0;
  while (std::memcmp(&got.at(i), &expected.at(i), sizeof(float)) == 0) ++i;
  std::ostringstream text;
  text << i << " is " << got[i] << ", not " << expected[i];
  return text.str();
}

class NarrowRun {
 public:
  NarrowRun(const World& world, const NarrowJob& job, const NarrowCase& tested, uint64_t sequence)
      : world_(world),
        job_(job),
        case_(tested),
        sequence_(sequence),
        given_(wild_floats(sequence, world.rank, tested.count)) {
    batch_.sequence = sequence;
    batch_.kind = job.kind;
    batch_.reduce_op = case_.op;
    batch_.prescale = case_.prescale;
    batch_.postscale = case_.postscale;
    batch_.piece_bytes = case_.piece_bytes;
    batch_.divisor = case_.op == ReduceOp::Average ? world.size : 1;
    batch_.count = case_.count;
    batch_.int8_between_hosts = job.wire_type == WireType::int8_blocks();
    result_travels_ = result_travels();
    const bool scatters = job.kind == CollectiveKind::Reducescatter;
    if (scatters) {
      std::vector<int64_t> blocks;
      for (int member = 0; member < world.size; ++member) blocks.push_back(block(member));
      batch_.send_counts = std::move(blocks);
      batch_.count = block(world.rank);
      for (int member = 0; member < world.rank; ++member) begin_ += block(member);
    }
    input_ = std::make_unique<ContractBuffer>(world, bytes_of(given_), case_.registered);
    batch_.input = input_->data();
    batch_.output = input_->data();
    if (case_.in_place && !scatters) return;
    const std::vector<std::byte> empty(static_cast<size_t>(batch_.count) * sizeof(float));
    output_ = std::make_unique<ContractBuffer>(world, empty, case_.registered);
    batch_.output = output_->data();
  }

  const core::Batch& batch() const { return batch_; }

  // Collective.
  void check_same_bits() const {
    const uint64_t hash =
        hash_of({batch_.output, static_cast<size_t>(batch_.count) * sizeof(float)});
    for (const uint64_t of_rank : world_.gather(hash)) EXPECT_EQ(of_rank, hash) << "ranks differ";
  }
  void check() const {
    SCOPED_TRACE(testing::Message()
                 << to_string(case_.op) << " of " << case_.count
                 << (case_.in_place ? " in place" : "") << (case_.registered ? " registered" : "")
                 << " scaled " << case_.prescale << ' ' << case_.postscale << " on rank "
                 << world_.rank);
    const std::vector<float> all = results();
    std::vector<float> expected(all.begin() + begin_, all.begin() + begin_ + batch_.count);
    std::vector<float> got(expected.size());
    const size_t bytes = got.size() * sizeof(float);
    if (bytes > 0) std::memcpy(got.data(), batch_.output, bytes);
    const std::vector<std::byte> as_it_is = bytes_of(got);
    make_nans_alike(got);
    make_nans_alike(expected);
    // Compared by one call, because a sanitizer checks each element that a loop reads.
    ASSERT_EQ(bytes == 0 ? 0 : std::memcmp(got.data(), expected.data(), bytes), 0)
        << "element " << first_difference(got, expected);
    EXPECT_TRUE((output_ ? output_ : input_)->holds(as_it_is)) << "guards";
    EXPECT_TRUE(output_ == nullptr || input_->holds(bytes_of(given_))) << "the input was changed";
  }

 private:
  int64_t block(int member) const {
    const int64_t each = case_.count / world_.size;
    const int64_t shift = each / 3;  // uneven
    if (member == 0) return each - shift;
    return member < world_.size - 1 ? each : case_.count - each * (world_.size - 1) + shift;
  }
  // Rounds these values as they are rounded for the wire.
  void round(std::vector<float>& values) const {
    if (job_.wire_type == WireType::int8_blocks()) return round_in_int8_blocks(values);
    round_to_16(job_.wire_type.dtype(), values);
  }
  std::vector<float> sums_of_host(int host) const {
    const Reduction sum{DataType::Float32, ReduceOp::Sum, case_.prescale, 1.0, 1};
    std::vector<std::vector<float>> of_ranks;
    std::vector<const std::byte*> inputs;
    for (int rank = 0; rank < world_.size; ++rank) {
      if (job_.hosts[static_cast<size_t>(rank)] != host) continue;
      of_ranks.push_back(wild_floats(sequence_, rank, case_.count));
      inputs.push_back(reinterpret_cast<const std::byte*>(of_ranks.back().data()));
    }
    const std::vector<std::byte> bytes = reference(sum, inputs, case_.count);
    std::vector<float> sums(static_cast<size_t>(case_.count));
    std::memcpy(sums.data(), bytes.data(), bytes.size());
    return sums;
  }
  // The results of the whole batch, calculated as the ops are documented.
  std::vector<float> results() const {
    const int hosts = *std::max_element(job_.hosts.begin(), job_.hosts.end()) + 1;
    std::vector<float> totals;
    for (int host = 0; host < hosts; ++host) {
      std::vector<float> sums = sums_of_host(host);
      round(sums);
      for (size_t i = 0; i < totals.size(); ++i) totals[i] += sums[i];
      if (host == 0) totals = std::move(sums);
    }
    const double factor = case_.postscale / static_cast<double>(batch_.divisor);
    for (float& total : totals) total *= static_cast<float>(factor);
    if (result_travels_) round(totals);
    return totals;
  }
  bool result_travels() const {
    if (job_.kind != CollectiveKind::Allreduce) return false;
    const HostsLayout layout = make_hosts_layout(core::make_topology(world_.rank, job_.hosts));
    return !plan_exchange(layout, DataType::Float32, case_.op, case_.count, job_.wire_type)
                .one_round;
  }

  const World& world_;
  const NarrowJob& job_;
  const NarrowCase case_;
  const uint64_t sequence_;
  const std::vector<float> given_;
  int64_t begin_ = 0;  // of the output, within the whole
  bool result_travels_ = false;
  std::unique_ptr<ContractBuffer> input_, output_;
  core::Batch batch_;
};

std::vector<NarrowCase> narrow_cases() {
  std::vector<NarrowCase> cases;
  for (const int64_t count : {kExactMax + 1, int64_t{5003}, int64_t{40'001}}) {
    for (const ReduceOp op : {ReduceOp::Sum, ReduceOp::Average}) {
      for (int variant = 0; variant < 4; ++variant) {
        cases.push_back(
            {.op = op, .count = count, .in_place = variant % 2 == 0, .registered = variant < 2});
      }
    }
  }
  for (const bool in_place : {true, false}) {
    cases.push_back({.count = 5003, .in_place = in_place, .prescale = 0.25, .postscale = 3.0});
    cases.push_back(
        {.op = ReduceOp::Average, .count = 30'011, .in_place = in_place, .postscale = 0.1});
  }
  cases.push_back({.count = 20'011, .piece_bytes = 1});
  cases.push_back({.count = 20'011, .registered = false, .piece_bytes = 12'345});
  cases.push_back({.count = 20'011, .in_place = false, .piece_bytes = 1 << 20});
  return cases;
}

}  // namespace

void check_narrow_wire(const World& world, core::CollectiveOp& op, CollectiveKind kind,
                       const std::vector<int>& hosts, WireType wire_type) {
  const NarrowJob job{kind, hosts, wire_type};
  const std::vector<NarrowCase> cases = narrow_cases();
  std::mt19937_64 random(static_cast<uint64_t>(world.rank) + 5);
  constexpr size_t at_once = 7;
  for (size_t begin = 0; begin < cases.size(); begin += at_once) {
    std::vector<std::unique_ptr<NarrowRun>> runs;
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    for (size_t i = begin; i < std::min(begin + at_once, cases.size()); ++i) {
      runs.push_back(std::make_unique<NarrowRun>(world, job, cases[i], i));
      in_flight.push_back(op.start(runs.back()->batch()));
    }
    drive(world, std::move(in_flight), random);
    for (const auto& run : runs) {
      if (kind == CollectiveKind::Allreduce) run->check_same_bits();
      run->check();
    }
  }
}

void check_not_narrowed(const World& world, core::CollectiveOp& op) {
  const std::vector<AllreduceCase> cases = {{.count = 0},
                                            {.op = ReduceOp::Average, .count = 1},
                                            {.op = ReduceOp::Average, .count = kExactMax},
                                            {.op = ReduceOp::Max, .count = 5003},
                                            {.op = ReduceOp::Product, .count = 5003},
                                            {.dtype = DataType::Float64, .count = 5003},
                                            {.dtype = DataType::Float16, .count = 5003},
                                            {.dtype = DataType::BFloat16, .count = 5003},
                                            {.dtype = DataType::Int32, .count = 5003}};
  std::mt19937_64 random(static_cast<uint64_t>(world.rank) + 6);
  std::vector<std::unique_ptr<AllreduceRun>> runs;
  std::vector<std::unique_ptr<core::InFlight>> in_flight;
  for (size_t i = 0; i < cases.size(); ++i) {
    runs.push_back(std::make_unique<AllreduceRun>(world, cases[i], i));
    in_flight.push_back(op.start(runs.back()->batch()));
  }
  drive(world, std::move(in_flight), random);
  for (const auto& run : runs) run->check();
}

}  // namespace horon::ops
