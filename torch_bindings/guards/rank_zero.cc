#include "horon/torch_bindings/guards/rank_zero.h"

#include <cstdio>

#include "horon/core/base/collective_ban.h"
#include "horon/ops/session/session.h"

namespace horon {

namespace {

// A collective in the scope would wait for ranks that never call it.
const char* ban_of(const ProcessSet& process_set) {
  if (process_set.is_world()) {
    return "it was called in code that rank 0 runs alone (rank_zero_only, RankZeroScope), so the "
           "other ranks would never call it. Call it on all ranks, before or after";
  }
  return "it was called in code that the lowest rank of a process set runs alone (rank_zero_only, "
         "RankZeroScope), so the other ranks would never call it. Call it on all ranks, before "
         "or after";
}

}  // namespace

bool is_rank_zero(const ProcessSet& process_set) {
  return process_set.is_world() ? last_rank() <= 0 : process_set.rank() == 0;
}

RankZeroScope::RankZeroScope(const ProcessSet& process_set)
    : rank_zero_(is_rank_zero(process_set)), before_(core::ban_collectives(ban_of(process_set))) {}

RankZeroScope::~RankZeroScope() { (void)core::ban_collectives(before_); }

namespace torch_detail {

void print_line(std::string line) {
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

}  // namespace torch_detail
}  // namespace horon
