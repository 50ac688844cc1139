#include "horon/ops/choice/algorithm.h"

#include <algorithm>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::ops {
namespace {

// On every machine so few bytes are read from all cells faster than a second hand-off takes: up to
// here cells always win.
constexpr int64_t kCellBytesAlways = 512;
// One hop takes as long as so many messages: a rank that passes a message on does other work
// between its looks for messages.
constexpr double kMessagesOfHop = 4;
// The sender's own time for each message of a hop. It counts where one host sends to hundreds.
constexpr double kPostUs = 0.5;

// Hops from the source to the last host.
int hops_of_tree(int hosts, int fan_out) {
  if (fan_out == 1) return hosts - 1;
  int hops = 0;
  int64_t reached = 1;
  for (int64_t level = 1; reached < hosts; ++hops) {
    level *= fan_out;
    reached += level;
  }
  return hops;
}

// Cells: one hand-off, and each rank reads the inputs of all. Pieces: one hand-off to begin and one
// to end; the ranks share the reading.
double shared_memory_us(const Situation& situation, Algorithm algorithm,
                        const MachineConstants& constants) {
  if (algorithm == Algorithm::Pieces) return 2 * constants.handoff_us;
  const double read = static_cast<double>(situation.bytes) * situation.ranks_of_host;
  return constants.handoff_us + read / constants.sum_bytes_per_us;
}

double rounds_us(const Situation& situation, Algorithm algorithm,
                 const MachineConstants& constants) {
  const double others = situation.hosts - 1;
  const auto bytes = static_cast<double>(situation.bytes);
  if (algorithm == Algorithm::OneRound) {
    return constants.message_us + bytes * others / constants.wire_bytes_per_us;
  }
  const double both = bytes + static_cast<double>(situation.result_bytes);
  return 2 * constants.message_us + both * others / situation.hosts / constants.wire_bytes_per_us;
}

// The first chunk goes to the last host, and the others follow it. With one child each wire carries
// the block once, but it passes all hosts one after the other. With more children it arrives after
// fewer hops, but a host's wire carries it once for each child.
double tree_us(const Situation& situation, int fan_out, const MachineConstants& constants) {
  const auto first = static_cast<double>(std::min(situation.bytes, situation.chunk_bytes));
  const double rest = static_cast<double>(situation.bytes) - first;
  const double hop = first * fan_out / constants.wire_bytes_per_us + kPostUs * fan_out +
                     kMessagesOfHop * constants.message_us;
  return rest * fan_out / constants.wire_bytes_per_us +
         hops_of_tree(situation.hosts, fan_out) * hop;
}

// The choice that takes least; the first of several.
template <class... Others>
Choice fastest(const Situation& situation, const MachineConstants& constants, Choice best,
               Others... others) {
  const auto compare = [&](const Choice& other) {
    if (compared_us(situation, other, constants) < compared_us(situation, best, constants)) {
      best = other;
    }
  };
  (compare(others), ...);
  return best;
}

Choice in_shared_memory(const Situation& situation, const MachineConstants& constants) {
  if (situation.kind != CollectiveKind::Allreduce) return {Algorithm::Blocks};
  if (situation.bytes > situation.cell_bytes) return {Algorithm::Pieces};
  if (situation.bytes <= kCellBytesAlways) return {Algorithm::Cells};
  return fastest(situation, constants, Choice{Algorithm::Cells}, Choice{Algorithm::Pieces});
}

Choice fastest_tree(const Situation& situation, const MachineConstants& constants) {
  Choice best{Algorithm::Tree, 1};
  for (int fan_out = 2; fan_out < situation.hosts; ++fan_out) {
    best = fastest(situation, constants, best, Choice{Algorithm::Tree, fan_out});
  }
  return best;
}

Choice between_hosts(const Situation& situation, const MachineConstants& constants) {
  switch (situation.kind) {
    case CollectiveKind::Allreduce:
      return fastest(situation, constants, Choice{Algorithm::OneRound},
                     Choice{Algorithm::TwoRounds});
    case CollectiveKind::Broadcast:
      return fastest_tree(situation, constants);
    case CollectiveKind::Allgather:
      return {Algorithm::ToAll, std::max(situation.hosts - 1, 1)};
    case CollectiveKind::Reducescatter:
      return {Algorithm::Collect};
    default:
      return {Algorithm::Messages};
  }
}

}  // namespace

std::string_view to_string(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::Cells:
      return "cells";
    case Algorithm::Pieces:
      return "pieces";
    case Algorithm::Blocks:
      return "blocks";
    case Algorithm::OneRound:
      return "one round";
    case Algorithm::TwoRounds:
      return "two rounds";
    case Algorithm::Tree:
      return "tree";
    case Algorithm::ToAll:
      return "each host to all others";
    case Algorithm::Collect:
      return "sums to the member's host";
    case Algorithm::Messages:
      return "messages between members";
    case Algorithm::Mpi:
      return "MPI";
  }
  return "?";
}

double compared_us(const Situation& situation, const Choice& choice,
                   const MachineConstants& constants) {
  switch (choice.algorithm) {
    case Algorithm::Cells:
    case Algorithm::Pieces:
      return shared_memory_us(situation, choice.algorithm, constants);
    case Algorithm::OneRound:
    case Algorithm::TwoRounds:
      return rounds_us(situation, choice.algorithm, constants);
    case Algorithm::Tree:
      return tree_us(situation, choice.fan_out, constants);
    default:
      HORON_CHECK(false, "this algorithm is the only one for its collective");
      return 0;
  }
}

Choice choose_algorithm(const Situation& situation, const MachineConstants& constants) {
  switch (situation.reach) {
    case Reach::SharedMemory:
      return in_shared_memory(situation, constants);
    case Reach::Hosts:
      return between_hosts(situation, constants);
    case Reach::MpiAlone:
      break;
  }
  return {Algorithm::Mpi};
}

// The constants tell how fast two ranks exchange blocks. A block that goes only one way is shared
// out in the same way: the kernel copies it with both cores, or each core makes one of the two
// copies.
bool copies_by_kernel(std::string_view knob, const MachineConstants& constants) {
  if (knob != "auto") return knob == "on";
  return constants.process_copy_bytes_per_us >= constants.ring_copy_bytes_per_us;
}

std::string describe(const Choice& choice) {
  if (choice.algorithm != Algorithm::Tree) return std::string(to_string(choice.algorithm));
  if (choice.fan_out == 1) return "chain";
  return core::concat("tree of fan-out ", choice.fan_out);
}

}  // namespace horon::ops
