#include "horon/ops/mpi/mpi_allgather.h"

#include <utility>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/base/error.h"
#include "horon/core/bootstrap/mpi_error.h"
#include "horon/ops/host/host_refusal.h"
#include "horon/ops/mpi/mpi_datatypes.h"
#include "horon/ops/mpi/mpi_in_flight.h"

namespace horon::ops {
namespace {

class InFlightAllgather final : public MpiInFlight {
 public:
  InFlightAllgather(std::shared_ptr<MpiChannel> shared, core::Batch given)
      : MpiInFlight(std::move(shared), std::move(given)) {
    const core::BlockCounts& counts = batch().receive_counts;
    HORON_CHECK(counts.size() == static_cast<size_t>(channel().size()), "one count for each rank");
    HORON_CHECK(counts[static_cast<size_t>(channel().rank())] == batch().count,
                "this rank's count must be its own");
    for (int rank = 0; rank < channel().size(); ++rank) {
      if (rank == channel().rank()) own_begin_ = total_;
      total_ += counts[static_cast<size_t>(rank)];
    }
    in_place_ = batch().input == place(own_begin_);
    // A copy instead of MPI_IN_PLACE, which all ranks or none must use (see mpi_reduction.h).
    if (by_one_call() && in_place_ && batch().count > 0) {
      copy_ = take_scratch(bytes_of(batch().count));
    }
    if (copy_ != nullptr || (!by_one_call() && !in_place_)) set_prepare_count(batch().count);
  }

 private:
  // MPI's counts and displacements are ints.
  bool by_one_call() const { return total_ <= channel().piece_elements_max(); }
  size_t bytes_of(int64_t elements) const {
    return static_cast<size_t>(elements) * size_of(batch().dtype);
  }
  std::byte* place(int64_t element) const {
    return batch().output + element * static_cast<int64_t>(size_of(batch().dtype));
  }

  void prepare(int64_t begin, int64_t count) override {
    std::byte* to = copy_ != nullptr ? copy_ + bytes_of(begin) : place(own_begin_ + begin);
    core::copy_bytes(to, batch().input + bytes_of(begin), bytes_of(count));
  }

  void post() override {
    if (by_one_call()) return post_gather();
    int64_t block = 0;
    for (int root = 0; root < channel().size(); ++root) {
      const int64_t block_count = batch().receive_counts[static_cast<size_t>(root)];
      for_each_piece(block_count, [&](int64_t begin, int count) {
        core::check_mpi(MPI_Ibcast(place(block + begin), count, mpi_datatype(batch().dtype), root,
                                   channel().communicator(), add_request()),
                        "MPI_Ibcast");
      });
      block += block_count;
    }
  }

  void post_gather() {
    int64_t begin = 0;
    for (const int64_t count : batch().receive_counts) {
      counts_.push_back(static_cast<int>(count));
      places_.push_back(static_cast<int>(begin));
      begin += count;
    }
    const MPI_Datatype type = mpi_datatype(batch().dtype);
    core::check_mpi(
        MPI_Iallgatherv(copy_ != nullptr ? copy_ : batch().input, static_cast<int>(batch().count),
                        type, batch().output, counts_.data(), places_.data(), type,
                        channel().communicator(), add_request()),
        "MPI_Iallgatherv");
  }

  int64_t total_ = 0;
  int64_t own_begin_ = 0;
  bool in_place_ = false;
  std::byte* copy_ = nullptr;  // a copy of the input, if that is part of the output
  // MPI reads these until the collective is complete.
  std::vector<int> counts_;
  std::vector<int> places_;
};

}  // namespace

MpiAllgather::MpiAllgather(std::shared_ptr<MpiChannel> channel) : channel_(std::move(channel)) {}

std::string MpiAllgather::refusal(const core::BatchFacts& facts) const {
  return host_refusal(facts, CollectiveKind::Allgather);
}

std::unique_ptr<core::InFlight> MpiAllgather::start(core::Batch batch) {
  return std::make_unique<InFlightAllgather>(channel_, std::move(batch));
}

}  // namespace horon::ops
