#include "horon/ops/session/process_set.h"

#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "horon/core/base/all_ranks.h"
#include "horon/core/base/error.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/ops/session/session_collectives.h"

namespace horon {

ProcessSet::ProcessSet(uint32_t id, std::vector<int> ranks, int me, uint32_t session)
    : id_(id),
      session_(session),
      ranks_(std::make_shared<const std::vector<int>>(std::move(ranks))) {
  for (size_t i = 0; i < ranks_->size(); ++i) {
    if ((*ranks_)[i] == me) me_ = static_cast<int>(i);
  }
}

// Outside any session the call that takes the set says so.
uint32_t ProcessSet::id() const {
  if (is_world()) return id_;
  const uint32_t running = ops::session_number();
  if (running == 0 || running == session_) return id_;
  throw Error(ErrorCode::InvalidArgument,
              core::concat(core::set_text(id_), " of ", core::name_ranks(*ranks_),
                           ": this process set belongs to a session that has ended"));
}

std::vector<int> ProcessSet::ranks() const {
  return ranks_ != nullptr ? *ranks_ : core::all_ranks(horon::size());
}

int ProcessSet::size() const {
  return ranks_ == nullptr ? horon::size() : static_cast<int>(ranks_->size());
}

int ProcessSet::rank() const { return ranks_ == nullptr ? horon::rank() : me_; }

ProcessSet split_process_set(int color) {
  const std::vector<std::string> colors =
      ops::gather_from_all(ops::runtime(), "horon.split_process_set", std::to_string(color));
  std::map<int, std::vector<int>> ranks_of;
  for (size_t rank = 0; rank < colors.size(); ++rank) {
    if (colors[rank].empty()) {
      throw Error(ErrorCode::RankLeft,
                  core::concat("split_process_set() needs every rank, and rank ", rank,
                               " has joined. Call it before join()."));
    }
    ranks_of[std::stoi(colors[rank])].push_back(static_cast<int>(rank));
  }
  ProcessSet mine;
  for (auto& [other, ranks] : ranks_of) {
    ProcessSet set = add_process_set(std::move(ranks));
    if (other == color) mine = std::move(set);
  }
  return mine;
}

ProcessSet add_local_process_set() {
  const core::Topology& topology = ops::runtime().topology();
  return split_process_set(topology.host_of[static_cast<size_t>(topology.rank)]);
}

ProcessSet add_cross_process_set() { return split_process_set(local_rank()); }

ProcessSet add_even_odd_process_set() { return split_process_set(rank() % 2); }

}  // namespace horon
