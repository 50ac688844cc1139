#include "horon/torch_bindings/guards/rank_zero.h"

#include <cstdio>

#include "horon/core/base/collective_ban.h"
#include "horon/ops/session/session.h"

namespace horon {

bool is_rank_zero() { return last_rank() <= 0; }

RankZeroScope::RankZeroScope()
    : rank_zero_(is_rank_zero()),
      before_(core::ban_collectives(
          "it was called in what rank 0 does alone (rank_zero_only, RankZeroScope), where the "
          "other ranks would never call it. Call it on all ranks, before or after")) {}

RankZeroScope::~RankZeroScope() { (void)core::ban_collectives(before_); }

namespace torch_detail {

void print_line(std::string line) {
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

}  // namespace torch_detail
}  // namespace horon
