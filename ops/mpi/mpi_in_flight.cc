#include "horon/ops/mpi/mpi_in_flight.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/bootstrap/mpi_error.h"
#include "horon/core/bootstrap/mpi_look.h"
#include "horon/core/bootstrap/mpi_requests_error.h"

namespace horon::ops {

using core::Progress;

MpiInFlight::MpiInFlight(std::shared_ptr<MpiChannel> channel, core::Batch batch)
    : channel_(std::move(channel)),
      batch_(std::move(batch)),
      position_(channel_->take_position()),
      scratch_(&channel_->scratch()) {}

MpiInFlight::~MpiInFlight() {
  if (stage_ == Stage::Preparing || stage_ == Stage::Queued) channel_->set_broken();
  if (stage_ != Stage::Flying) scratch_.give_back();  // else MPI may still write there
}

std::byte* MpiInFlight::take_scratch(size_t bytes) {
  HORON_CHECK(scratch_.memory() == nullptr, "one scratch buffer for each collective");
  return scratch_.take(bytes);
}

Progress MpiInFlight::step() {
  switch (stage_) {
    case Stage::Preparing:
      if (cursor_ < prepare_count_) {
        const int64_t count = std::min(kElementsPerStep, prepare_count_ - cursor_);
        prepare(cursor_, count);
        cursor_ += count;
        if (cursor_ < prepare_count_) return Progress::Advanced;
      }
      stage_ = Stage::Queued;
      [[fallthrough]];
    case Stage::Queued:
      if (channel_->broken()) {
        throw Error(ErrorCode::OperationFailed,
                    "an earlier MPI collective was given up, so later ones can't be matched");
      }
      if (!channel_->is_turn_of(position_)) return Progress::Polling;
      stage_ = Stage::Flying;
      post();
      channel_->pass_turn();
      return Progress::Advanced;
    case Stage::Flying:
      return test();
    case Stage::Finishing: {
      const int64_t count = std::min(kElementsPerStep, finish_count_ - cursor_);
      finish(cursor_, count);
      cursor_ += count;
      if (cursor_ < finish_count_) return Progress::Advanced;
      stage_ = Stage::Done;
      return Progress::Done;
    }
    case Stage::Done:
      break;
  }
  return Progress::Done;
}

Progress MpiInFlight::test() {
  const core::MpiLook look;
  int complete = 1;
  statuses_.resize(requests_.size());
  const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &complete,
                               core::without_errors(statuses_));
  if (code == MPI_SUCCESS && complete == 0) return Progress::Driving;
  core::check_mpi(core::error_of_requests(code, statuses_), "MPI_Testall");
  cursor_ = 0;
  stage_ = finish_count_ > 0 ? Stage::Finishing : Stage::Done;
  return stage_ == Stage::Done ? Progress::Done : Progress::Advanced;
}

}  // namespace horon::ops
