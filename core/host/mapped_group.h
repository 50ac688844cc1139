// A group whose ranks reach each other's memory.
#pragma once

#include <map>
#include <memory>
#include <poll.h>
#include <string>
#include <utility>
#include <vector>

#include "horon/core/host/local_group.h"
#include "horon/core/host/shared_heap.h"
#include "horon/core/host/shared_segment.h"

namespace horon::core {

// Move-only owner of the descriptor by which the kernel tells that a process has ended.
class ProcessWatch {
 public:
  ProcessWatch() = default;
  // An old kernel has no such descriptor: then descriptor() is -1, which poll() ignores, and deaths
  // show only as silence.
  explicit ProcessWatch(int process_id);
  ProcessWatch(ProcessWatch&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  ProcessWatch& operator=(ProcessWatch&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~ProcessWatch();
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

class MappedGroup final : public LocalGroup {
 public:
  struct Peer {
    int process_id = 0;
    std::shared_ptr<SharedHeap> heap;  // set if the peer is this rank or a thread of this process
    ProcessWatch watch;
  };
  struct Parts {
    int local_rank = 0;
    std::vector<int> ranks;  // [local rank] -> the rank that errors name
    std::vector<Peer> peers;
    Reach reach = Reach::ByProcess;
    std::shared_ptr<SharedSegment> home;  // of local rank 0: doorbells, then the area
    std::string no_copies_reason;
  };
  explicit MappedGroup(Parts parts);
  ~MappedGroup() override;
  MappedGroup(const MappedGroup&) = delete;
  MappedGroup& operator=(const MappedGroup&) = delete;

  int local_rank() const override { return parts_.local_rank; }
  int local_size() const override { return static_cast<int>(parts_.peers.size()); }
  bool available() const override { return true; }
  std::string unavailable_reason() const override { return ""; }
  Reach reach() const override { return parts_.reach; }

  Doorbell& doorbell(int local_rank) override;
  std::byte* area() override;

  std::shared_ptr<std::byte> allocate(size_t bytes) override {
    return heap().allocate(bytes, true);
  }
  std::shared_ptr<std::byte> allocate_scratch(size_t bytes) override {
    return heap().allocate(bytes, false);
  }
  std::shared_ptr<std::byte> allocate_reused(size_t bytes) override {
    return heap().allocate_reused(bytes);
  }
  std::optional<SharedAddress> locate(const std::byte* data, size_t bytes) const override {
    return heap().locate(data, bytes);
  }
  std::byte* map(int local_rank, const SharedAddress& address) override;

  bool copies_between_processes() const override { return parts_.no_copies_reason.empty(); }
  std::string no_copies_reason() const override { return parts_.no_copies_reason; }
  void read(int local_rank, std::byte* to, uint64_t address, size_t bytes) override;
  void write(int local_rank, uint64_t address, const std::byte* from, size_t bytes) override;

  std::vector<int> dead_local_ranks() override;
  int process_id(int local_rank) const override { return peer(local_rank).process_id; }

 private:
  const Peer& peer(int local_rank) const {
    return parts_.peers.at(static_cast<size_t>(local_rank));
  }
  SharedHeap& heap() const { return *peer(parts_.local_rank).heap; }
  SharedSegment open_segment(int local_rank, const SharedAddress& address);
  void require_copied(int local_rank, int error);
  [[noreturn]] void throw_dead(int local_rank) const;
  std::string name_of(int local_rank) const;
  bool has_died(int local_rank);

  const Parts parts_;
  std::map<std::pair<int, uint64_t>, SharedSegment> mapped_;
  std::vector<pollfd> polls_;
};

}  // namespace horon::core
