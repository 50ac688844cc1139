#include "horon/core/execution/executor.h"

#include <utility>

#include "horon/core/base/all_ranks.h"
#include "horon/core/base/current_error.h"
#include "horon/core/base/keep_for_ever.h"

namespace horon::core {

Executor::Executor(Parts parts)
    : context_{parts.rank, std::move(parts.ranks), std::move(parts.ops), std::move(parts.timeline),
               std::move(parts.scratch)},
      lent_ops_(std::make_shared<LentOps>(*context_.ops)) {
  if (context_.ranks.empty()) context_.ranks = all_ranks(parts.size);
}

Executor::~Executor() {
  if (!lent_ops_->end()) keep_for_ever(std::move(context_.ops));
}

void Executor::enqueue(BatchWork work) {
  HORON_CHECK(!work.entries.empty(), "a batch without entries");
  if (running_.size() >= kUnderWayMax || !in_line_.empty()) {
    in_line_.push_back(std::move(work));
  } else {
    begin(std::move(work));
  }
}

void Executor::begin(BatchWork work) {
  if (spare_.empty()) spare_.emplace_back();
  spare_.front().emplace(std::move(work), context_);
  running_.splice(running_.end(), spare_, spare_.begin());
}

Executor::Pace Executor::step(std::vector<FinishedBatch>& finished,
                              std::vector<EnqueuedBatch>& enqueued) {
  Pace pace = Pace::Idle;
  const auto slower = [&](Pace seen) {
    // The batch that must be stepped soonest decides: Busy, Driving, Polling, then Ringing.
    if (pace == Pace::Idle || seen < pace) pace = seen;
  };
  earlier_.clear();
  for (auto batch = running_.begin(); batch != running_.end();) {
    RunningBatch& running = **batch;
    Progress progress = Progress::Done;
    std::optional<Error> error;
    try {
      progress = running.step(earlier_);
    } catch (...) {
      error = current_error();
      running.leak();
    }
    if (!error && running.has_news()) {
      enqueued.push_back(running.tell());
      slower(Pace::Busy);
    }
    if (progress != Progress::Done) {
      earlier_.add(running.domain(), running.needs_scratch(), running.unstarted_op());
      slower(progress == Progress::Advanced  ? Pace::Busy
             : progress == Progress::Driving ? Pace::Driving
             : progress == Progress::Polling ? Pace::Polling
                                             : Pace::Ringing);
      ++batch;
      continue;
    }
    const bool has_failed = error.has_value();
    finished.emplace_back();  // before finish(): if there is no memory, the batch stays
    finished.back() = running.finish(std::move(error));
    const auto done = batch++;
    done->reset();
    spare_.splice(spare_.begin(), running_, done);
    slower(Pace::Busy);
    // The failed batch may not have started all its work: a later batch that starts now would take
    // its place in the order of start among the peers, before the job ends.
    if (has_failed) break;
  }
  // The batches that begin here are stepped in the next pass, which comes soon: there is room only
  // if a batch has finished in this pass, so the pace is Busy.
  while (!in_line_.empty() && running_.size() < kUnderWayMax) {
    begin(std::move(in_line_.front()));
    in_line_.pop_front();
  }
  return pace;
}

void Executor::abandon() noexcept {
  if (!running_.empty()) keep_value_for_ever(running_);
  if (!in_line_.empty()) keep_value_for_ever(in_line_);
  context_.ops->abort();
}

}  // namespace horon::core
