#include "horon/ops/session/process_set.h"

#include <cstddef>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "horon/ops/session/session.h"

namespace horon {
namespace {

std::vector<int> gather_from_all(int mine) {
  auto spec = std::make_shared<core::EntrySpec>();
  spec->kind = CollectiveKind::Allgather;
  spec->dtype = DataType::Int32;
  spec->parts = {{"horon.split_process_set", {1}}};
  std::vector<int> all(static_cast<size_t>(size()));
  core::Submission submission;
  submission.name = "horon.split_process_set";
  submission.spec = std::move(spec);
  submission.memory = {{reinterpret_cast<const std::byte*>(&mine), nullptr, 1}};
  submission.allocate_output = [&all](size_t, int64_t) {
    return reinterpret_cast<std::byte*>(all.data());
  };
  (void)core::runtime().submit(std::move(submission))->get();
  return all;
}

}  // namespace

ProcessSet::ProcessSet(uint32_t id, std::vector<int> ranks, int me)
    : id_(id), ranks_(std::make_shared<const std::vector<int>>(std::move(ranks))) {
  for (size_t i = 0; i < ranks_->size(); ++i) {
    if ((*ranks_)[i] == me) me_ = static_cast<int>(i);
  }
}

std::vector<int> ProcessSet::ranks() const {
  if (ranks_ != nullptr) return *ranks_;
  std::vector<int> all(static_cast<size_t>(horon::size()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

int ProcessSet::size() const {
  return ranks_ == nullptr ? horon::size() : static_cast<int>(ranks_->size());
}

int ProcessSet::rank() const { return ranks_ == nullptr ? horon::rank() : me_; }

ProcessSet split_process_set(int color) {
  std::map<int, std::vector<int>> ranks_of;
  const std::vector<int> colors = gather_from_all(color);
  for (size_t rank = 0; rank < colors.size(); ++rank) {
    ranks_of[colors[rank]].push_back(static_cast<int>(rank));
  }
  ProcessSet mine;
  for (auto& [other, ranks] : ranks_of) {
    ProcessSet set = add_process_set(std::move(ranks));
    if (other == color) mine = std::move(set);
  }
  return mine;
}

ProcessSet add_local_process_set() {
  const core::Topology& topology = core::runtime().topology();
  return split_process_set(topology.host_of[static_cast<size_t>(topology.rank)]);
}

ProcessSet add_cross_process_set() { return split_process_set(local_rank()); }

ProcessSet add_even_odd_process_set() { return split_process_set(rank() % 2); }

}  // namespace horon
