#include "horon/ops/hierarchical/exchange_plan.h"

#include <algorithm>

#include "horon/core/base/round_up.h"
#include "horon/core/base/text.h"
#include "horon/ops/choice/algorithm.h"

namespace horon::ops {
namespace {

// What is done to a chunk in one go must not hold up the loop: the sums of all hosts are added, on
// however many hosts, and the inputs or results of all ranks of a host are read or written.
constexpr int64_t kBytesOfHostsMax = 1 << 20;
constexpr int64_t kBytesOfRanksMax = 2 << 20;
// With hundreds of ranks these limits would leave so little for each message that the messages cost
// more than what they carry. There, more is done in one go, up to another limit. (Between two
// processes, horon-bench --piece-bytes shows 24 MiB to take 1.1 to 1.3 times as long with messages
// of 8 KiB as with 56 KiB, but 3 times with 2 KiB.)
constexpr int64_t kShortMessageBytes = 8 << 10;
constexpr int64_t kBytesOfManyMax = 8 << 20;
// Bytes that a host has under way: more than a cable of 10 Gbit/s and 1 ms holds.
constexpr int64_t kHostBytesAtOnce = 2 << 20;
// In elements: parts begin at cache lines, and where a message may begin.
constexpr int64_t kPartAlignment = WireType::kAlignment;
// The least length of a chunk that is asked for.
constexpr int64_t kWirePieceBytesMin = 4 << 10;

int64_t whole_lines(int64_t elements) {
  return std::max(elements / kPartAlignment, int64_t{1}) * kPartAlignment;
}

// How many elements may be added and written in one go, however they travel; see
// message_elements().
int64_t elements_in_one_go(const HostsLayout& layout, DataType dtype, WireType wire_type,
                           int64_t parts, int64_t addends) {
  const int64_t bytes_touched = std::max(wire_type.bytes(kPartAlignment) / kPartAlignment,
                                         static_cast<int64_t>(size_of(dtype)));
  const int64_t of_ranks = layout.most_ranks * parts;
  const int64_t usual = std::min(kBytesOfHostsMax / addends, kBytesOfRanksMax / of_ranks);
  const int64_t at_least =
      std::min(kShortMessageBytes, kBytesOfManyMax / std::max(addends, of_ranks));
  return std::max(usual, at_least) / bytes_touched;
}

// The message, in elements, of a chunk of so many bytes in the memory of the ranks.
int64_t message_of_piece(const HostsLayout& layout, DataType dtype, WireType wire_type,
                         int64_t parts, int64_t piece_bytes) {
  const int64_t wished =
      std::max(piece_bytes, kWirePieceBytesMin) / static_cast<int64_t>(size_of(dtype)) / parts;
  return whole_lines(
      std::min(wished, elements_in_one_go(layout, dtype, wire_type, parts, layout.hosts)));
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
  const int64_t each = core::round_up((chunk.count + hosts - 1) / hosts, kPartAlignment);
  const int64_t begin = std::min(host * each, chunk.count);
  return {begin, std::min(each, chunk.count - begin)};
}

int64_t message_elements(const HostsLayout& layout, DataType dtype, WireType wire_type,
                         int64_t parts, int64_t addends) {
  return whole_lines(std::min(wire_type.elements_in(kMessageBytes),
                              elements_in_one_go(layout, dtype, wire_type, parts, addends)));
}

int64_t chunk_elements(const HostsLayout& layout, WireType wire_type, int64_t count,
                       int64_t longest) {
  const int64_t share = core::round_up((count + layout.lanes - 1) / layout.lanes, kPartAlignment);
  return std::clamp(share, std::min(wire_type.elements_in(kLaneBytesMin), longest), longest);
}

// Each lane has at least two: one is on its way while the other is added or written.
int chunks_at_once(const HostsLayout& layout, WireType wire_type, int64_t message,
                   int64_t messages_of_chunk) {
  const int64_t of_host = std::clamp<int64_t>(
      kHostBytesAtOnce / (wire_type.bytes(message) * std::max<int64_t>(messages_of_chunk, 1)), 4,
      32);
  return static_cast<int>(std::max<int64_t>((of_host + layout.lanes - 1) / layout.lanes, 2));
}

ExchangePlan plan_exchange(const HostsLayout& layout, DataType dtype, ReduceOp op, int64_t count,
                           WireType allowed, const MachineConstants& constants,
                           int64_t piece_bytes) {
  ExchangePlan plan;
  plan.wire_type = choose_wire_type(dtype, op, count, layout.one_rank_each(), allowed);
  const bool narrowed = plan.wire_type.narrows(dtype);
  plan.raw = layout.one_rank_each() && !narrowed;
  plan.count = count;
  const int64_t hosts = layout.hosts;
  Situation situation;
  situation.reach = Reach::Hosts;
  situation.hosts = layout.hosts;
  situation.ranks_of_host = layout.most_ranks;
  situation.bytes = plan.wire_type.bytes(count);
  situation.result_bytes =
      narrowed ? situation.bytes : count * static_cast<int64_t>(size_of(dtype));
  plan.one_round =
      choose_algorithm(situation, narrowed ? MachineConstants() : constants).algorithm ==
      Algorithm::OneRound;
  const int64_t parts = plan.one_round ? 1 : hosts;  // of a chunk; each is one message
  const int64_t message = piece_bytes == 0
                              ? message_elements(layout, dtype, plan.wire_type, parts, hosts)
                              : message_of_piece(layout, dtype, plan.wire_type, parts, piece_bytes);
  plan.chunk_elements = chunk_elements(layout, plan.wire_type, count, message * parts);
  plan.chunks = (count + plan.chunk_elements - 1) / plan.chunk_elements;
  plan.chunks_at_once = chunks_at_once(layout, plan.wire_type, message, hosts - 1);
  return plan;
}

std::string describe(const HostsLayout& layout, const ExchangePlan& plan) {
  const auto bytes = static_cast<uint64_t>(plan.wire_type.bytes(plan.chunk_elements));
  return core::concat(layout.hosts, " hosts, ", layout.lanes,
                      layout.lanes == 1 ? " lane" : " lanes",
                      plan.one_round ? ", one round, " : ", two rounds, ", plan.chunks,
                      plan.chunks == 1 ? " chunk of " : " chunks of ", core::bytes_text(bytes),
                      " of ", plan.wire_type.name());
}

}  // namespace horon::ops
