// The stages of every collective on MPI: prepare the input, post, test until complete, finish the
// output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <mpi.h>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/host/scratch_loan.h"
#include "horon/ops/mpi/mpi_channel.h"

namespace horon::ops {

// MPI can't cancel a collective: once posted, it must be stepped until it is done. If the object is
// destroyed earlier, its scratch memory is never freed, since MPI may still use it. The memory of
// the batch must not be freed either.
class MpiInFlight : public core::InFlight {
 public:
  MpiInFlight(std::shared_ptr<MpiChannel> channel, core::Batch batch);
  ~MpiInFlight() override;
  MpiInFlight(const MpiInFlight&) = delete;
  MpiInFlight& operator=(const MpiInFlight&) = delete;

  core::Progress step() final;

 protected:
  // The most elements that one step() converts or copies.
  static constexpr int64_t kElementsPerStep = int64_t{256} << 10;

  // Work on elements [begin, begin + count) before MPI runs, and after it.
  virtual void prepare(int64_t /*begin*/, int64_t /*count*/) {}
  virtual void finish(int64_t /*begin*/, int64_t /*count*/) {}
  virtual void post() = 0;

  // For post(): a new request, which step() will wait for.
  MPI_Request* add_request() { return &requests_.emplace_back(MPI_REQUEST_NULL); }
  // Calls visit(first element, number of elements) for pieces whose number fits an int.
  template <class Visit>
  void for_each_piece(int64_t count, const Visit& visit) const {
    const int64_t piece = channel_->piece_elements_max();
    for (int64_t begin = 0; begin < count; begin += piece) {
      visit(begin, static_cast<int>(count - begin < piece ? count - begin : piece));
    }
  }
  // 64-byte aligned; lives as long as this object. May be called once.
  std::byte* take_scratch(size_t bytes);
  // How many elements prepare() and finish() are called for. 0, the default: they are not called.
  void set_prepare_count(int64_t count) { prepare_count_ = count; }
  void set_finish_count(int64_t count) { finish_count_ = count; }

  MpiChannel& channel() const { return *channel_; }
  const core::Batch& batch() const { return batch_; }

 private:
  enum class Stage : uint8_t { Preparing, Queued, Flying, Finishing, Done };

  core::Progress test();

  std::shared_ptr<MpiChannel> channel_;
  core::Batch batch_;
  uint64_t position_;  // in the order of posting
  Stage stage_ = Stage::Preparing;
  int64_t cursor_ = 0;
  int64_t prepare_count_ = 0;
  int64_t finish_count_ = 0;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;  // of the last test of requests_
  ScratchLoan scratch_;
};

}  // namespace horon::ops
