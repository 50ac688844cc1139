#include "horon/ops/hierarchical/exchange_plan.h"

#include <algorithm>

#include "horon/core/base/text.h"

namespace horon::ops {
namespace {

// What is done to a chunk in one go must not hold up the loop: the sums of all hosts are added, on
// however many hosts, and the inputs or results of all ranks of a host are read or written.
constexpr int64_t kBytesOfHostsMax = 1 << 20;
constexpr int64_t kBytesOfRanksMax = 2 << 20;
// What one lane has under way: more than a cable of 10 Gbit/s and 1 ms holds.
constexpr int64_t kLaneBytesAtOnce = 2 << 20;
// What a cable carries while a message is on its way: one round may send so much more than two.
constexpr int64_t kRoundBytes = 16 << 10;
// Several lanes do not pay for less.
constexpr int64_t kLaneBytesMin = 16 << 10;
constexpr int64_t kPartAlignment = 64;  // elements; parts begin at cache lines

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// As the collectives on MPI do: 16-bit floats are added in float32, averages of integers in int64.
DataType type_of_sums(DataType dtype, ReduceOp op) {
  if (dtype == DataType::Float16 || dtype == DataType::BFloat16) return DataType::Float32;
  if (op == ReduceOp::Average && !is_floating(dtype)) return DataType::Int64;
  return dtype;
}

}  // namespace

HostsLayout make_hosts_layout(const core::Topology& topology) {
  HostsLayout layout;
  layout.hosts = topology.host_count();
  layout.host = topology.host_of[static_cast<size_t>(topology.rank)];
  layout.local_rank = topology.local_rank;
  layout.local_size = topology.local_size;
  std::vector<std::vector<int>> members(static_cast<size_t>(layout.hosts));
  for (int rank = 0; rank < topology.size; ++rank) {
    members[static_cast<size_t>(topology.host_of[static_cast<size_t>(rank)])].push_back(rank);
  }
  const auto fewer = [](const auto& a, const auto& b) { return a.size() < b.size(); };
  const auto [least, most] = std::minmax_element(members.begin(), members.end(), fewer);
  layout.lanes = static_cast<int>(least->size());
  layout.most_ranks = static_cast<int>(most->size());
  if (!layout.drives()) return layout;
  for (const std::vector<int>& on_host : members) {
    layout.peers.push_back(on_host[static_cast<size_t>(layout.local_rank)]);
  }
  return layout;
}

ExchangePlan::Stretch ExchangePlan::chunk(int64_t index) const {
  const int64_t begin = index * chunk_elements;
  return {begin, std::min(chunk_elements, count - begin)};
}

ExchangePlan::Stretch ExchangePlan::part(const Stretch& chunk, int host, int hosts) const {
  const int64_t each = round_up((chunk.count + hosts - 1) / hosts, kPartAlignment);
  const int64_t begin = std::min(host * each, chunk.count);
  return {begin, std::min(each, chunk.count - begin)};
}

ExchangePlan plan_exchange(const HostsLayout& layout, DataType dtype, ReduceOp op, int64_t count) {
  ExchangePlan plan;
  plan.raw = layout.one_rank_each();
  plan.wire_type = plan.raw ? dtype : type_of_sums(dtype, op);
  plan.count = count;
  const int64_t hosts = layout.hosts;
  const auto wire_bytes = static_cast<int64_t>(size_of(plan.wire_type));
  const auto result_bytes = static_cast<int64_t>(size_of(dtype));
  const double in_one_round = static_cast<double>(count * wire_bytes * (hosts - 1));
  const double in_two_rounds = static_cast<double>(count * (wire_bytes + result_bytes)) *
                               static_cast<double>(hosts - 1) / static_cast<double>(hosts);
  plan.one_round = in_one_round <= in_two_rounds + static_cast<double>(kRoundBytes);
  const int64_t parts = plan.one_round ? 1 : hosts;  // of a chunk; each is one message
  const int64_t message_bytes = std::min(
      {kMessageBytes, kBytesOfHostsMax / hosts, kBytesOfRanksMax / (layout.most_ranks * parts)});
  const int64_t message =
      std::max(message_bytes / wire_bytes / kPartAlignment, int64_t{1}) * kPartAlignment;
  const int64_t longest = message * parts;
  const int64_t share = round_up((count + layout.lanes - 1) / layout.lanes, kPartAlignment);
  plan.chunk_elements = std::clamp(share, std::min(kLaneBytesMin / wire_bytes, longest), longest);
  plan.chunks = (count + plan.chunk_elements - 1) / plan.chunk_elements;
  plan.chunks_at_once = static_cast<int>(std::clamp<int64_t>(
      kLaneBytesAtOnce / (message * wire_bytes * std::max<int64_t>(hosts - 1, 1)), 4, 32));
  return plan;
}

std::string describe(const HostsLayout& layout, const ExchangePlan& plan) {
  const auto bytes = static_cast<uint64_t>(plan.chunk_elements) * size_of(plan.wire_type);
  return core::concat(layout.hosts, " hosts, ", layout.lanes,
                      layout.lanes == 1 ? " lane" : " lanes",
                      plan.one_round ? ", one round, " : ", two rounds, ", plan.chunks,
                      plan.chunks == 1 ? " chunk of " : " chunks of ", core::bytes_text(bytes),
                      " of ", to_string(plan.wire_type));
}

}  // namespace horon::ops
