#include "horon/core/runtime/set_runner.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "horon/core/base/keep_for_ever.h"
#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/core/base/timeline.h"
#include "horon/core/negotiation/gate.h"
#include "horon/core/runtime/eager_elements.h"
#include "horon/core/runtime/open_receives.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/core/runtime/reaper.h"
#include "horon/core/runtime/shared_statistics.h"

namespace horon::core {
namespace {

// At most so many emptied lists of entries are kept for the next batches.
constexpr size_t kSparesMax = 16;
constexpr Nanos kThawWithoutLimits = 60'000'000'000;

Nanos nanos(double seconds) { return static_cast<Nanos>(seconds * 1e9); }

Controller::Options controller_options(const SetRunner::Parts& parts) {
  const Config& config = *parts.config;
  Controller::Options options;
  options.rank = parts.me;
  options.size = static_cast<int>(parts.ranks.size());
  options.ranks = parts.ranks;
  options.host_of = parts.host_of;
  options.eager = config.eager_bytes > 0 && parts.resources.reduce != nullptr;
  options.set = parts.id;
  options.may_leave = parts.id != kWorldSet && !is_pair_set(parts.id);
  options.fusion_bytes_max = config.fusion_bytes_max;
  options.alone_bytes = std::min(options.alone_bytes, config.fusion_bytes_max);
  options.dead_after = nanos(config.dead_after_s);
  options.stall_warn_after = nanos(config.stall_warn_s);
  options.stall_abort_after = nanos(config.stall_abort_s);
  if (config.freeze) options.gate = parts.resources.gate.get();
  // Stall reports come from the coordinator's table of open entries, which has no frozen ones, and
  // so does the choice of the members that are asked whether they live. So a frozen entry thaws
  // after a fraction of the limits, which are exceeded by no more than that. Where this rank wants
  // neither, the coordinator may still report stalls, but there is no hurry.
  if (config.stall_warn_s <= 0 && config.stall_abort_s <= 0 && config.dead_after_s <= 0) {
    options.thaw_after = kThawWithoutLimits;
  }
  if (config.stall_warn_s > 0) {
    options.thaw_after = std::min(options.thaw_after, options.stall_warn_after / 4);
  }
  if (config.stall_abort_s > 0) {
    options.thaw_after = std::min(options.thaw_after, options.stall_abort_after / 8);
  }
  return options;
}

// What this rank says about its rows (Ready::extents).
std::vector<int64_t> extents_of(const Submission& submission) {
  const EntrySpec& spec = *submission.spec;
  if (spec.kind != CollectiveKind::Allgather && spec.kind != CollectiveKind::Gather) {
    return submission.splits;
  }
  std::vector<int64_t> rows;
  for (const TensorPart& part : spec.parts) rows.push_back(part.shape.front());
  return rows;
}

}  // namespace

SetRunner::SetRunner(Parts parts)
    : parts_(std::move(parts)), controller_(controller_options(parts_)) {}

// What the set has counted stays in the sums; its scratch is given back.
SetRunner::~SetRunner() {
  Statistics last = counted_;
  last.scratch_bytes = last.scratch_bytes_limit = 0;
  last.collectives_in_flight = last.bytes_in_flight = 0;  // after a failure
  publish(last);
}

void SetRunner::stir() {
  stirred_ = true;
  if (!std::exchange(listed_, true)) parts_.busy->add(*this, waited_);
  controller_.set_time(parts_.busy->time());
}

bool SetRunner::try_drop() noexcept {
  const bool busy = stirred_ || moved_ || pace_ != Executor::Pace::Idle || !controller_.is_idle();
  listed_ = busy;
  waited_ = !at_rest();
  return !busy;
}

void SetRunner::take(Submission&& submission) {
  stir();
  Request request{0, {}, submission.spec, submission.absent, extents_of(submission)};
  if (controller_.sends_eagerly() && may_travel_with_vote(submission, parts_.config->eager_bytes)) {
    request.eager = true;
    request.elements = elements_of(submission);
  }
  request.ticket = live_.add();
  request.name = std::move(submission.name);  // nobody asks the submission for it any more
  LiveSubmission& live = live_.at(request.ticket);
  live.submission = std::move(submission);  // before anything that can throw
  live.negotiation = {profiler_of(parts_.timeline), "negotiate", request.name};
  if (records(parts_.timeline)) live.taken_at = Clock::now();
  controller_.submit(std::move(request));
}

void SetRunner::refuse(const Refusal& refusal) {
  stir();
  controller_.refuse(refusal.name, refusal.text);
}

void SetRunner::shut_down() {
  stir();
  controller_.shutdown();
}

void SetRunner::leave() {
  stir();
  controller_.leave();
}

void SetRunner::greet() {
  stir();
  controller_.greet();
}

void SetRunner::seek(const std::string& name) {
  stir();
  controller_.seek(name);
}

void SetRunner::expect_found(int change) {
  stir();
  controller_.expect_found(change);
}

void SetRunner::fail(const Error& error) {
  stir();
  controller_.fail(error);
}

void SetRunner::join(std::shared_ptr<HandleState>&& handle) {
  stir();
  const Ticket ticket = live_.add();
  live_.at(ticket).submission.handle = std::move(handle);
  controller_.join(ticket);
}

void SetRunner::receive(int from_rank, std::span<const std::byte> bytes) {
  stir();
  const auto member = std::find(parts_.ranks.begin(), parts_.ranks.end(), from_rank);
  if (member == parts_.ranks.end()) {
    controller_.fail(Error(ErrorCode::Internal, concat("rank ", from_rank, " sent a message to ",
                                                       "a process set that it is not in")));
    return;
  }
  controller_.receive(static_cast<int>(member - parts_.ranks.begin()), bytes);
}

bool SetRunner::has_member(int rank) const {
  return std::find(parts_.ranks.begin(), parts_.ranks.end(), rank) != parts_.ranks.end();
}

bool SetRunner::decide(std::vector<Outgoing>& outbox) {
  stirred_ = false;
  controller_.tick(parts_.busy->time());
  controller_.take_effects(effects_);
  has_new_stall_text_ = stall_text_ != controller_.stall_text();
  if (has_new_stall_text_) stall_text_ = controller_.stall_text();
  moved_ = apply(effects_, outbox);
  return moved_;
}

void SetRunner::publish_statistics() {
  Statistics now = controller_.statistics();
  now.collectives_in_flight = controller_.member().batches_running();
  now.bytes_in_flight = bytes_started_ - bytes_ended_;
  const ScratchPool& scratch = parts_.resources.executor->scratch();
  now.scratch_bytes = scratch.usage().bytes;
  now.scratch_bytes_peak = scratch.usage().bytes_peak;
  if (scratch.bytes_max() != ScratchPool::kNoLimit) now.scratch_bytes_limit = scratch.bytes_max();
  publish(now);
}

void SetRunner::publish(const Statistics& now) {
  parts_.statistics->add(std::exchange(counted_, now), now);
}

bool SetRunner::work() {
  for (const GatheredEntry& gathered : gathered_) finish(gathered);
  gathered_.clear();
  pace_ = parts_.resources.executor->step(finished_, enqueued_);
  const bool moved = settle_batches() || pace_ == Executor::Pace::Busy;
  moved_ = moved_ || moved;
  return moved;
}

bool SetRunner::apply(Effects& effects, std::vector<Outgoing>& outbox) {
  const bool any = !effects.messages.empty() || !effects.starts.empty() ||
                   !effects.gathered.empty() || !effects.finished.empty() ||
                   !effects.found.empty() || effects.fatal || effects.bye;
  for (const Found& found : effects.found) parts_.open->note(parts_.id, found);
  for (const std::string& line : effects.warnings) log(LogLevel::Warn, line);
  for (Outgoing& message : effects.messages) {
    message.to = parts_.ranks[static_cast<size_t>(message.to)];
    outbox.push_back(std::move(message));
  }
  for (StartBatch& start : effects.starts) {
    parts_.resources.executor->enqueue(work_of(start));
    start.entries.clear();
    if (effects.spare_entries.size() == kSparesMax) continue;
    effects.spare_entries.push_back(std::move(start.entries));
  }
  publish_statistics();  // before a handle finishes: whoever waited for it finds it counted
  // Set the error before the handle wakes its waiter.
  if (effects.fatal) (void)parts_.on_fatal(*effects.fatal);
  gathered_.insert(gathered_.end(), std::make_move_iterator(effects.gathered.begin()),
                   std::make_move_iterator(effects.gathered.end()));
  for (const Finished& finished : effects.finished) {
    Outcome outcome;
    outcome.error = finished.error;
    outcome.unused = !finished.error.has_value();
    outcome.last_joined = finished.last_joined;
    complete(finished.ticket, std::move(outcome));
  }
  bye_ = bye_ || effects.bye;
  return any;
}

void SetRunner::finish(const GatheredEntry& gathered) {
  LiveSubmission& live = live_.at(gathered.ticket);
  live.negotiation.end();
  reduce_elements(live.submission, parts_.ranks, gathered.elements, parts_.resources.reduce);
  if (records(parts_.timeline) && live.taken_at != Clock::time_point()) {
    parts_.timeline->span("negotiate", gathered.name, live.taken_at, Clock::now());
  }
  Outcome outcome;
  outcome.contributors = static_cast<int>(parts_.ranks.size());
  complete(gathered.ticket, std::move(outcome));
}

BatchWork SetRunner::work_of(StartBatch& start) {
  BatchWork work;
  work.sequence = start.sequence;
  work.contributors = start.contributors;
  if (!spare_entries_.empty()) {
    work.entries = std::move(spare_entries_.back());
    spare_entries_.pop_back();
  }
  for (StartEntry& entry : start.entries) {
    EntryWork& out = work.entries.emplace_back();
    out.name = std::move(entry.name);
    out.spec = entry.spec;
    out.extents = std::move(entry.extents);
    out.mine = entry.ticket.has_value();
    if (!out.mine) continue;
    out.ticket = *entry.ticket;
    LiveSubmission& live = live_.at(out.ticket);
    live.started = true;
    live.negotiation.end();
    live.bytes = static_cast<uint64_t>(element_count(*out.spec)) * size_of(out.spec->dtype);
    bytes_started_ += live.bytes;
    live.produced = std::move(entry.produced);
    live.contributors = start.contributors;
    out.memory = std::move(live.submission.memory);
    out.narrowed = live.submission.narrowed;
    out.copied_to_host = live.submission.copied_to_host;
    out.allocate_output = std::move(live.submission.allocate_output);
    out.output_blocks = std::move(live.submission.output_blocks);
    out.ready = std::move(live.submission.ready);
    // If the timeline was started after the submission came, its time is missing.
    if (!records(parts_.timeline) || live.taken_at == Clock::time_point()) continue;
    parts_.timeline->span("negotiate", out.name, live.taken_at, Clock::now());
  }
  return work;
}

Error SetRunner::error_of(const FinishedBatch& batch) const {
  // Several ranks may find the same dead peer at once, in different collectives. This rank adds
  // nothing to the text, so that it is the same on all ranks.
  if (batch.error->code() == ErrorCode::PeerDead) return *batch.error;
  const int rank = parts_.ranks[static_cast<size_t>(parts_.me)];
  return Error(batch.error->code(),
               concat("rank ", rank, ": collective of \"", batch.entries.front().name,
                      "\" failed: ", batch.error->what()));
}

bool SetRunner::settle_batches() {
  const bool any = !enqueued_.empty() || !finished_.empty();
  for (EnqueuedBatch& batch : enqueued_) {
    controller_.batch_enqueued();
    settle(batch);
  }
  enqueued_.clear();
  for (FinishedBatch& batch : finished_) {
    if (batch.error) {
      // A peer that has failed may have said why, perhaps in another set: that counts more than the
      // consequence that shows here.
      const Error error = parts_.take_messages().value_or(error_of(batch));
      controller_.fail(error);
      // Its handles hear what all others hear.
      batch.error = parts_.on_fatal(controller_.fatal().value_or(error));
    }
    controller_.batch_finished(batch.was_enqueued);
    settle(batch);
    if (spare_entries_.size() == kSparesMax) continue;
    batch.entries.clear();
    spare_entries_.push_back(std::move(batch.entries));
  }
  finished_.clear();
  return any;
}

// The memory stays until the batch has finished.
void SetRunner::settle(EnqueuedBatch& batch) {
  for (EnqueuedBatch::Entry& entry : batch.entries) {
    LiveSubmission& live = live_.at(entry.ticket);
    Outcome outcome;
    outcome.error = std::move(entry.error);
    outcome.produced = std::move(live.produced);
    outcome.contributors = live.contributors;
    outcome.received = std::move(entry.received);
    outcome.done = batch.done;
    live.submission.handle->finish(std::move(outcome));
  }
}

void SetRunner::settle(FinishedBatch& batch) {
  for (const EntryWork& entry : batch.entries) {
    if (entry.mine) bytes_ended_ += live_.at(entry.ticket).bytes;
  }
  publish_statistics();  // as in apply()
  for (EntryWork& entry : batch.entries) {
    if (!entry.mine) continue;
    LiveSubmission& live = live_.at(entry.ticket);
    live.submission.allocate_output = std::move(entry.allocate_output);
    live.submission.ready = std::move(entry.ready);
    Outcome outcome;
    outcome.error = batch.error ? batch.error : entry.error;
    outcome.produced = std::move(live.produced);
    outcome.contributors = live.contributors;
    outcome.received = std::move(entry.received);
    complete(entry.ticket, std::move(outcome), batch.error.has_value());
  }
}

void SetRunner::complete(Ticket ticket, Outcome outcome, bool memory_in_use) noexcept {
  Submission& submission = live_.at(ticket).submission;
  // The memory first: whoever waits for the handle may then release it.
  const std::shared_ptr<HandleState> handle = submission.handle;
  if (memory_in_use) {
    keep_value_for_ever(submission);
  } else {
    parts_.reaper->add(std::move(submission));
  }
  live_.erase(ticket);
  if (!handle->finished()) return handle->finish(std::move(outcome));
  if (outcome.error) handle->fail_enqueued(*outcome.error);
}

void SetRunner::finish_all(const Error& error) noexcept {
  // Batches that were being settled when an exception ended the job: some may have failed.
  if (!finished_.empty()) keep_value_for_ever(finished_);
  while (!live_.empty()) {
    const Ticket ticket = live_.any();
    Outcome outcome;
    outcome.error = error;
    complete(ticket, std::move(outcome), live_.at(ticket).started);
  }
}

void SetRunner::abandon_all() noexcept {
  parts_.resources.executor->abandon();
  // Giving these back may mean waiting for members that are gone.
  keep_for_ever(std::move(parts_.resources.keep_alive));
}

}  // namespace horon::core
