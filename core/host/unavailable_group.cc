// A group whose ranks can't reach each other's memory: everything goes through MPI.
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/host/local_group.h"
#include "horon/core/host/shared_segment.h"

namespace horon::core {
namespace {

class UnavailableGroup final : public LocalGroup {
 public:
  UnavailableGroup(int local_rank, int local_size, std::string reason)
      : rank_(local_rank), size_(local_size), reason_(std::move(reason)) {}

  int local_rank() const override { return rank_; }
  int local_size() const override { return size_; }
  bool available() const override { return false; }
  std::string unavailable_reason() const override { return reason_; }
  Reach reach() const override { return Reach::ByProcess; }
  Doorbell& doorbell(int local_rank) override {
    HORON_CHECK(local_rank == rank_, "only the own doorbell exists without shared memory");
    return doorbell_;
  }
  std::byte* area() override { return nullptr; }
  std::shared_ptr<std::byte> allocate(size_t bytes) override {
    std::shared_ptr<std::byte> memory = allocate_scratch(bytes);
    std::memset(memory.get(), 0, bytes);
    return memory;
  }
  std::shared_ptr<std::byte> allocate_scratch(size_t bytes) override {
    void* const memory = bytes > SharedSegment::kBytesMax
                             ? nullptr
                             : ::operator new(std::max<size_t>(bytes, 1), kAlignment, std::nothrow);
    if (memory == nullptr) {
      throw Error(ErrorCode::Limit, concat("no memory for ", bytes_text(bytes)));
    }
    return {static_cast<std::byte*>(memory),
            [](std::byte* data) { ::operator delete(data, kAlignment); }};
  }
  std::shared_ptr<std::byte> allocate_reused(size_t bytes) override {
    return allocate_scratch(bytes);
  }
  std::optional<SharedAddress> locate(const std::byte*, size_t) const override {
    return std::nullopt;
  }
  std::byte* map(int local_rank, const SharedAddress&) override {
    throw Error(ErrorCode::OperationFailed,
                concat("memory of local rank ", local_rank, " can't be mapped: ", reason_));
  }
  bool copies_between_processes() const override { return false; }
  std::string no_copies_reason() const override { return reason_; }
  void read(int local_rank, std::byte*, uint64_t, size_t) override { refuse_copy(local_rank); }
  void write(int local_rank, uint64_t, const std::byte*, size_t) override {
    refuse_copy(local_rank);
  }
  std::vector<int> dead_local_ranks() override { return {}; }
  int process_id(int) const override { return 0; }

 private:
  [[noreturn]] void refuse_copy(int local_rank) const {
    throw Error(ErrorCode::OperationFailed,
                concat("memory of local rank ", local_rank, " can't be copied: ", reason_));
  }

  static constexpr std::align_val_t kAlignment{64};
  const int rank_;
  const int size_;
  const std::string reason_;
  Doorbell doorbell_;
};

}  // namespace

std::unique_ptr<LocalGroup> LocalGroup::create_unavailable(int local_rank, int local_size,
                                                           std::string reason) {
  return std::make_unique<UnavailableGroup>(local_rank, local_size, std::move(reason));
}

}  // namespace horon::core
