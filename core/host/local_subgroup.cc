#include "horon/core/host/local_subgroup.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <unistd.h>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/host/shared_segment.h"

namespace horon::core {
namespace {

class LocalSubgroup final : public LocalGroup {
 public:
  LocalSubgroup(std::shared_ptr<LocalGroup> parent, std::vector<int> local_ranks,
                std::shared_ptr<SharedSegment> area)
      : parent_(std::move(parent)),
        local_ranks_(std::move(local_ranks)),
        rank_(index_of(parent_->local_rank())),
        area_(std::move(area)) {}

  int local_rank() const override { return rank_; }
  int local_size() const override { return static_cast<int>(local_ranks_.size()); }
  bool available() const override { return true; }
  std::string unavailable_reason() const override { return ""; }
  Reach reach() const override { return parent_->reach(); }

  Doorbell& doorbell(int local_rank) override { return parent_->doorbell(in_parent(local_rank)); }
  std::byte* area() override { return area_->data(); }

  std::shared_ptr<std::byte> allocate(size_t bytes) override { return parent_->allocate(bytes); }
  std::shared_ptr<std::byte> allocate_scratch(size_t bytes) override {
    return parent_->allocate_scratch(bytes);
  }
  std::shared_ptr<std::byte> allocate_reused(size_t bytes) override {
    return parent_->allocate_reused(bytes);
  }
  std::optional<SharedAddress> locate(const std::byte* data, size_t bytes) const override {
    return parent_->locate(data, bytes);
  }
  std::byte* map(int local_rank, const SharedAddress& address) override {
    return parent_->map(in_parent(local_rank), address);
  }

  bool copies_between_processes() const override { return parent_->copies_between_processes(); }
  std::string no_copies_reason() const override { return parent_->no_copies_reason(); }
  void read(int local_rank, std::byte* to, uint64_t address, size_t bytes) override {
    parent_->read(in_parent(local_rank), to, address, bytes);
  }
  void write(int local_rank, uint64_t address, const std::byte* from, size_t bytes) override {
    parent_->write(in_parent(local_rank), address, from, bytes);
  }

  std::vector<int> dead_local_ranks() override {
    std::vector<int> dead;
    for (const int rank : parent_->dead_local_ranks()) {
      if (index_of(rank) >= 0) dead.push_back(index_of(rank));
    }
    return dead;
  }
  int process_id(int local_rank) const override {
    return parent_->process_id(in_parent(local_rank));
  }

 private:
  int in_parent(int local_rank) const { return local_ranks_.at(static_cast<size_t>(local_rank)); }
  // -1: not in the subgroup.
  int index_of(int parent_rank) const {
    const auto member = std::find(local_ranks_.begin(), local_ranks_.end(), parent_rank);
    return member == local_ranks_.end() ? -1 : static_cast<int>(member - local_ranks_.begin());
  }

  const std::shared_ptr<LocalGroup> parent_;
  const std::vector<int> local_ranks_;  // of the parent
  const int rank_;
  const std::shared_ptr<SharedSegment> area_;
};

// Where the first rank of a subgroup has its area.
struct Offer {
  int64_t process_id;
  int64_t descriptor;
  uint64_t generation;
  uint64_t own;  // a std::shared_ptr<SharedSegment>*, for ranks that are threads of one process
};

std::shared_ptr<SharedSegment> open_offer(const Offer& offer, Reach reach) {
  // The owner keeps the pointer until all have opened it.
  if (offer.process_id == getpid()) {
    return *reinterpret_cast<const std::shared_ptr<SharedSegment>*>(offer.own);
  }
  return std::make_shared<SharedSegment>(
      SharedSegment::open(reach, static_cast<pid_t>(offer.process_id),
                          static_cast<int>(offer.descriptor), offer.generation));
}

// The text of what `step` throws, else "".
template <class Step>
std::string failure_of(const Step& step) {
  try {
    step();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

std::unique_ptr<LocalGroup> make_local_subgroup(const std::shared_ptr<LocalGroup>& group,
                                                const Bootstrap& bootstrap,
                                                const std::vector<int>& local_ranks,
                                                size_t area_bytes) {
  const bool takes_part = !local_ranks.empty() && group->available();
  std::shared_ptr<SharedSegment> segment;
  Offer mine{};
  std::string failure;
  if (takes_part && local_ranks.front() == group->local_rank()) {
    failure = failure_of([&] {
      segment = std::make_shared<SharedSegment>(SharedSegment::create(area_bytes, group->reach()));
      mine = {getpid(), segment->descriptor(), segment->generation(),
              reinterpret_cast<uint64_t>(&segment)};
    });
  }
  // A rank without an offer calls it too: ranks of other hosts may be in the same collective.
  const std::vector<Offer> offers = allgather_values(bootstrap, Bootstrap::Among::Host, mine);
  if (takes_part && local_ranks.front() != group->local_rank()) {
    const Offer& offer = offers[static_cast<size_t>(local_ranks.front())];
    const bool made = offer.process_id != 0;  // else the rank that failed says why
    if (made) failure = failure_of([&] { segment = open_offer(offer, group->reach()); });
  }
  // This is a barrier too: every rank keeps its offer until all ranks have opened it.
  const std::vector<std::string> failures = bootstrap.allgather(Bootstrap::Among::Host, failure);
  if (local_ranks.empty()) return nullptr;
  std::string reason = group->unavailable_reason();
  for (size_t rank = 0; rank < failures.size() && reason.empty(); ++rank) {
    if (!failures[rank].empty()) reason = concat("local rank ", rank, ": ", failures[rank]);
  }
  if (reason.empty()) return std::make_unique<LocalSubgroup>(group, local_ranks, segment);
  const auto me = std::find(local_ranks.begin(), local_ranks.end(), group->local_rank());
  return LocalGroup::create_unavailable(static_cast<int>(me - local_ranks.begin()),
                                        static_cast<int>(local_ranks.size()), reason);
}

}  // namespace horon::core
