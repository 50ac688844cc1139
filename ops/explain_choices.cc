#include "horon/ops/explain_choices.h"

#include <cstdint>

#include "horon/core/base/text.h"
#include "horon/ops/choice/algorithm.h"
#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/ops/hierarchical/wire_type.h"
#include "horon/ops/host/small_allreduce.h"

namespace horon::ops {
namespace {

constexpr DataType kType = DataType::Float32;
constexpr auto kElement = static_cast<int64_t>(sizeof(float));
constexpr int64_t kLongest = int64_t{1} << 30;

Reach reach_of(const Communicator& communicator, const core::Config& config, CollectiveKind kind) {
  if (kind == CollectiveKind::Allreduce && config.allreduce == "mpi") return Reach::MpiAlone;
  const core::Topology& topology = communicator.topology();
  if (topology.one_host()) {
    return config.shared_memory && communicator.local_group().available() ? Reach::SharedMemory
                                                                          : Reach::MpiAlone;
  }
  const bool by_messages = kind == CollectiveKind::Alltoall || kind == CollectiveKind::Gather ||
                           kind == CollectiveKind::Scatter;
  return by_messages || communicator.all_reach_their_hosts() ? Reach::Hosts : Reach::MpiAlone;
}

Situation situation_of(const Communicator& communicator, Reach reach, CollectiveKind kind,
                       int64_t bytes) {
  const HostsLayout layout = make_hosts_layout(communicator.topology());
  Situation situation;
  situation.kind = kind;
  situation.reach = reach;
  situation.hosts = layout.hosts;
  situation.ranks_of_host = layout.most_ranks;
  situation.bytes = bytes;
  situation.cell_bytes = SmallAllreduce::payload_bytes_max(layout.most_ranks);
  const int64_t longest = message_elements(layout, kType, kType, 1, 1);
  situation.chunk_bytes = chunk_elements(layout, kType, bytes / kElement, longest) * kElement;
  return situation;
}

// An allreduce between hosts asks its plan, which knows the type that travels.
Choice choice_of(const Communicator& communicator, const core::Config& config, CollectiveKind kind,
                 int64_t bytes) {
  const Reach reach = reach_of(communicator, config, kind);
  if (kind == CollectiveKind::Allreduce && reach == Reach::Hosts) {
    const ExchangePlan plan = plan_exchange(
        make_hosts_layout(communicator.topology()), kType, ReduceOp::Sum, bytes / kElement,
        wire_type_named(config.wire_dtype), communicator.constants());
    return {plan.one_round ? Algorithm::OneRound : Algorithm::TwoRounds};
  }
  return choose_algorithm(situation_of(communicator, reach, kind, bytes), communicator.constants());
}

std::string how_private_blocks_go(const Communicator& communicator, const core::Config& config) {
  const core::LocalGroup& group = communicator.local_group();
  const bool allowed = group.copies_between_processes();
  if (allowed && copies_by_kernel(config.process_copies, communicator.constants())) {
    return "copied by the kernel";
  }
  return core::concat("by way of shared memory (",
                      allowed ? "faster than a copy by the kernel" : group.no_copies_reason(), ")");
}

}  // namespace

std::vector<std::string> explain_choices(const Communicator& communicator,
                                         const core::Config& config) {
  std::vector<std::string> lines;
  for (const CollectiveKind kind :
       {CollectiveKind::Allreduce, CollectiveKind::Broadcast, CollectiveKind::Allgather,
        CollectiveKind::Reducescatter, CollectiveKind::Alltoall, CollectiveKind::Gather,
        CollectiveKind::Scatter}) {
    std::string line = core::concat(to_string(kind), ": ");
    std::string last;
    for (int64_t bytes = kElement; bytes <= kLongest; bytes *= 2) {
      const std::string now = describe(choice_of(communicator, config, kind, bytes));
      if (now == last) continue;
      if (!last.empty()) {
        line += core::concat(" to ", core::bytes_text(static_cast<uint64_t>(bytes / 2)), ", then ");
      }
      line += now;
      last = now;
    }
    lines.push_back(line);
  }
  const core::LocalGroup& group = communicator.local_group();
  const bool shares =
      reach_of(communicator, config, CollectiveKind::Alltoall) == Reach::SharedMemory;
  if (shares && group.local_size() > 1) {
    lines.push_back(core::concat("long blocks between private memories: ",
                                 how_private_blocks_go(communicator, config)));
  }
  return lines;
}

}  // namespace horon::ops
