#include "horon/core/runtime/runtime.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <sys/prctl.h>
#include <thread>
#include <unordered_map>
#include <utility>

#include "horon/core/base/log.h"
#include "horon/core/base/prompt_thread.h"
#include "horon/core/base/text.h"
#include "horon/core/base/timeline.h"
#include "horon/core/execution/executor.h"
#include "horon/core/negotiation/controller.h"
#include "horon/core/runtime/pacer.h"
#include "horon/core/runtime/submission_check.h"
#include "horon/core/runtime/submission_queue.h"
#include "horon/core/transport/transport.h"

namespace horon::core {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

Nanos nanos(double seconds) { return static_cast<Nanos>(seconds * 1e9); }

Controller::Options controller_options(const Config& config, const Topology& topology) {
  Controller::Options options;
  options.rank = topology.rank;
  options.size = topology.size;
  options.fusion_bytes_max = config.fusion_bytes_max;
  options.alone_bytes = std::min(options.alone_bytes, config.fusion_bytes_max);
  options.dead_after = nanos(config.dead_after_s);
  options.stall_warn_after = nanos(config.stall_warn_s);
  options.stall_abort_after = nanos(config.stall_abort_s);
  return options;
}

Error closed_error() {
  return Error(ErrorCode::NotInitialized, "horon::shutdown() has been called");
}

}  // namespace

// Everything below `queue_` belongs to the runtime thread.
class Runtime::Impl {
 public:
  explicit Impl(Parts parts)
      : config_(std::move(parts.config)),
        topology_(std::move(parts.topology)),
        timeline_(std::move(parts.timeline)),
        transport_(std::move(parts.transport)),
        executor_(std::move(parts.executor)),
        controller_(controller_options(config_, topology_)) {
    thread_ = std::thread([this] { run(); });
  }

  std::shared_ptr<HandleState> submit(Submission submission) {
    const std::string fault = find_fault(submission, topology_.size);
    if (!fault.empty()) {
      const std::string text = concat("tensor \"", submission.name, "\": ", fault);
      refuse(submission.name, text);
      throw Error(ErrorCode::InvalidArgument, text);
    }
    submission.handle = std::make_shared<HandleState>();
    std::shared_ptr<HandleState> handle = submission.handle;
    call(std::move(submission));
    return handle;
  }

  void refuse(const std::string& name, const std::string& text) noexcept {
    if (name.empty() || name.size() > kNameBytesMax) return;  // nobody else can mean it
    try {
      call(Refusal{name, text});
    } catch (const Error&) {  // shut down: the others are told by that
    }
  }

  std::string shutdown(nanoseconds deadline) {
    const std::lock_guard lock(shutdown_mutex_);
    if (!thread_.joinable()) return "";
    try {
      call(ShutdownCall{});
    } catch (const Error&) {  // the job has ended already
    }
    queue_.close(closed_error());
    deadline_ns_ = (Clock::now() + deadline).time_since_epoch().count();
    leaving_ = true;
    transport_->ring();
    if (std::this_thread::get_id() == thread_.get_id()) {
      thread_.detach();  // exit() was called on the runtime thread itself: it can't wait for itself
      return "";
    }
    thread_.join();
    transport_.reset();
    if (timeline_ != nullptr) timeline_->flush();
    return farewell_;
  }

  std::shared_ptr<const Error> fatal_error() const {
    const std::lock_guard lock(report_mutex_);
    return fatal_;
  }

  std::string stall_report() const {
    const std::lock_guard lock(report_mutex_);
    return stall_report_;
  }

  const Config config_;
  const Topology topology_;
  const std::shared_ptr<Timeline> timeline_;

 private:
  void call(Call call) { queue_.push(std::move(call)); }

  void run() {
    make_thread_prompt();
    try {
      while (!ended_) turn();
      say_goodbye();
    } catch (const Error& error) {
      end_all(error);
    }
    executor_.reset();
  }

  // The last messages (Bye, Abort) go out; a peer that takes nothing any more does not hold us up
  // for long.
  void say_goodbye() {
    const auto limit = Clock::now() + std::chrono::seconds(1);
    while (!transport_->flushed() && Clock::now() < limit) (void)transport_->receive();
  }

  void turn() {
    const Nanos now = Clock::now().time_since_epoch().count();
    controller_.set_time(now);
    bool news = take_calls();
    news = take_messages() || news;
    controller_.tick(now);
    news = apply(controller_.take_effects()) || news;
    const Executor::Pace pace = executor_->step(finished_);
    news = settle_batches() || news;
    // Bye is the last record, but what earlier records have started still runs.
    if (bye_ && pace == Executor::Pace::Idle) ended_ = true;
    if (ended_ || news || pace == Executor::Pace::Busy) {
      pacer_.news();
      return;
    }
    rest(pace);
  }

  bool take_calls() {
    calls_.clear();
    queue_.drain(calls_);
    for (Call& call : calls_) {
      std::visit(Overloaded{
                     [&](Submission& submission) { take(std::move(submission)); },
                     [&](Refusal& refusal) { controller_.refuse(refusal.name, refusal.text); },
                     [&](JoinCall& join) {
                       live_[++last_ticket_].handle = std::move(join.handle);
                       controller_.join(last_ticket_);
                     },
                     [&](ShutdownCall&) { controller_.shutdown(); },
                 },
                 call);
    }
    return !calls_.empty();
  }

  void take(Submission submission) {
    const Ticket ticket = ++last_ticket_;
    if (timeline_ != nullptr) taken_at_[ticket] = Clock::now();
    Request request{ticket, submission.name, submission.spec, submission.absent};
    live_.emplace(ticket, std::move(submission));
    controller_.submit(std::move(request));
  }

  bool take_messages() {
    bool any = false;
    while (const std::optional<Transport::Message> message = transport_->receive()) {
      controller_.receive(message->from, message->bytes);
      any = true;
    }
    return any;
  }

  bool apply(Effects effects) {
    const bool any = !effects.messages.empty() || !effects.starts.empty() ||
                     !effects.finished.empty() || effects.fatal || effects.bye;
    for (const std::string& line : effects.warnings) log(LogLevel::Warn, line);
    if (controller_.stall_text() != stall_report_) {  // only this thread writes it
      const std::lock_guard lock(report_mutex_);
      stall_report_ = controller_.stall_text();
    }
    for (Outgoing& message : effects.messages) {
      transport_->send(message.to, std::move(message.bytes));
    }
    for (StartBatch& start : effects.starts) executor_->enqueue(work_of(start));
    if (effects.fatal) set_fatal(*effects.fatal);  // who is woken by the error must find it
    for (const Finished& finished : effects.finished) {
      Outcome outcome;
      outcome.error = finished.error;
      outcome.unused = !finished.error.has_value();
      complete(finished.ticket, std::move(outcome));
    }
    if (effects.fatal) end_all(*effects.fatal);
    if (effects.bye) bye_ = true;
    return any;
  }

  BatchWork work_of(StartBatch& start) {
    BatchWork work;
    work.sequence = start.sequence;
    work.contributors = start.contributors;
    for (StartEntry& entry : start.entries) {
      EntryWork& out = work.entries.emplace_back();
      out.name = std::move(entry.name);
      out.spec = entry.spec;
      out.mine = entry.ticket.has_value();
      if (entry.spec->kind == CollectiveKind::Allgather) out.counts = row_counts(entry);
      if (!out.mine) continue;
      out.ticket = *entry.ticket;
      note_negotiation(out);
      Submission& submission = live_.at(out.ticket);
      out.memory = std::move(submission.memory);
      out.allocate_output = submission.allocate_output;
      out.ready = std::move(submission.ready);
      produced_[out.ticket] = std::move(entry.produced);
    }
    return work;
  }

  void note_negotiation(const EntryWork& entry) {
    if (timeline_ == nullptr) return;
    timeline_->span("negotiate", entry.name, taken_at_[entry.ticket], Clock::now());
    taken_at_.erase(entry.ticket);
  }

  static std::vector<int64_t> row_counts(const StartEntry& entry) {
    const std::vector<int64_t>& shape = entry.spec->parts.front().shape;
    const int64_t row = element_count({shape.begin() + 1, shape.end()});
    std::vector<int64_t> counts;
    for (const int64_t rows : entry.first_extents) counts.push_back(rows * row);
    return counts;
  }

  bool settle_batches() {
    for (FinishedBatch& batch : finished_) {
      if (batch.error) {
        controller_.fail(
            Error(batch.error->code(),
                  concat("rank ", topology_.rank, ": collective of \"", batch.entries.front().name,
                         "\" failed: ", batch.error->what())));
      }
      settle(batch);
      controller_.batch_finished();
    }
    const bool any = !finished_.empty();
    finished_.clear();
    return any;
  }

  void settle(FinishedBatch& batch) {
    for (EntryWork& entry : batch.entries) {
      if (!entry.mine) continue;
      Outcome outcome;
      outcome.error = batch.error;
      outcome.produced = std::move(produced_[entry.ticket]);
      produced_.erase(entry.ticket);
      outcome.counts = std::move(entry.counts);
      complete(entry.ticket, std::move(outcome));
    }
  }

  void complete(Ticket ticket, Outcome outcome) {
    const auto place = live_.find(ticket);
    HORON_CHECK(place != live_.end(), "a submission finished twice");
    Submission submission = std::move(place->second);
    live_.erase(place);
    submission.handle->finish(std::move(outcome));
  }

  void set_fatal(const Error& error) {
    {
      const std::lock_guard lock(report_mutex_);
      if (fatal_ != nullptr) return;
      fatal_ = std::make_shared<const Error>(error);
    }
    log(LogLevel::Error, error.what());
    queue_.close(error);
  }

  // The job is over: whatever waits gets this error, and so does whoever comes later.
  void end_all(const Error& error) {
    set_fatal(error);
    for (FinishedBatch& batch : executor_->abandon(error)) settle(batch);
    calls_.clear();
    queue_.drain(calls_);
    for (Call& call : calls_) {
      if (auto* submission = std::get_if<Submission>(&call)) fail(submission->handle, error);
      if (auto* join = std::get_if<JoinCall>(&call)) fail(join->handle, error);
    }
    calls_.clear();
    for (auto& [ticket, submission] : live_) fail(submission.handle, error);
    live_.clear();
    ended_ = true;
  }

  static void fail(const std::shared_ptr<HandleState>& handle, const Error& error) {
    Outcome outcome;
    outcome.error = error;
    handle->finish(std::move(outcome));
  }

  bool past_deadline() const {
    return leaving_ && Clock::now().time_since_epoch().count() >= deadline_ns_;
  }

  void rest(Executor::Pace pace) {
    const bool at_rest = controller_.at_rest();
    const bool poll = transport_->must_poll() || pace == Executor::Pace::Polling;
    transport_->wait(pacer_.pause(poll, at_rest, controller_.is_coordinator()));
    if ((!at_rest || leaving_) && pacer_.long_wait()) look_for_the_dead();
    if (past_deadline()) leave_alone();
  }

  void look_for_the_dead() {
    const std::optional<std::string> dead = transport_->dead_peer();
    if (!dead) return;
    // While all ranks shut down, a peer that is gone may have had its Bye a moment before us.
    constexpr auto grace = std::chrono::seconds(2);
    if (controller_.at_rest()) {
      const int64_t soon = (Clock::now() + grace).time_since_epoch().count();
      deadline_ns_ = std::min<int64_t>(deadline_ns_, soon);
    } else {
      controller_.fail(Error(ErrorCode::PeerDead, concat(*dead, " has died")));
    }
  }

  // shutdown() has waited long enough.
  void leave_alone() {
    const std::string missing =
        controller_.stall_text().empty() ? "" : concat(" (", controller_.stall_text(), ")");
    farewell_ = concat("shutdown(): not all ranks have called it within the time limit", missing);
    log(LogLevel::Warn, farewell_);
    end_all(Error(ErrorCode::Timeout, farewell_));
  }

  SubmissionQueue queue_{[this] { transport_->ring(); }};
  std::mutex shutdown_mutex_;
  mutable std::mutex report_mutex_;
  std::shared_ptr<const Error> fatal_;
  std::string stall_report_;
  std::atomic<bool> leaving_{false};
  std::atomic<int64_t> deadline_ns_{0};

  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Executor> executor_;
  Controller controller_;
  Pacer pacer_;
  std::vector<Call> calls_;
  std::vector<FinishedBatch> finished_;
  std::unordered_map<Ticket, Submission> live_;
  std::unordered_map<Ticket, std::vector<bool>> produced_;
  std::unordered_map<Ticket, Clock::time_point> taken_at_;  // only while a timeline is written
  Ticket last_ticket_ = 0;
  bool bye_ = false;  // every rank has shut down
  bool ended_ = false;
  std::string farewell_;
  std::thread thread_;
};

Runtime::Runtime(Parts parts) : impl_(std::make_unique<Impl>(std::move(parts))) {}

Runtime::~Runtime() {
  const auto limit = std::chrono::duration<double>(impl_->config_.shutdown_timeout_s);
  shutdown(std::chrono::duration_cast<nanoseconds>(limit));
}

std::shared_ptr<HandleState> Runtime::submit(Submission submission) {
  return impl_->submit(std::move(submission));
}
void Runtime::refuse(const std::string& name, const std::string& text) noexcept {
  impl_->refuse(name, text);
}
std::string Runtime::shutdown(nanoseconds deadline) { return impl_->shutdown(deadline); }
std::shared_ptr<const Error> Runtime::fatal_error() const { return impl_->fatal_error(); }
std::string Runtime::stall_report() const { return impl_->stall_report(); }
const Config& Runtime::config() const { return impl_->config_; }
const Topology& Runtime::topology() const { return impl_->topology_; }
Timeline* Runtime::timeline() const { return impl_->timeline_.get(); }

}  // namespace horon::core
