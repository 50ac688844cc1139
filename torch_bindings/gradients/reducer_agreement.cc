// How the ranks agree in a round: by flags that travel with the buckets, and by one allreduce more
// if a flag asks for it.
#include <algorithm>
#include <map>
#include <utility>

#include <c10/core/StreamGuard.h>

#include "horon/core/base/log.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/gradients/reducer_impl.h"
#include "horon/torch_bindings/gradients/replica_check.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon {

using namespace torch_detail;

// This rank's flags for the round. They are set once, before its first bucket goes, so that flags
// and announcement describe the same moment.
void GradientReducer::Impl::raise_flags() {
  const std::lock_guard lock(flags_mutex_);
  if (flags_) return;
  const auto number = static_cast<uint64_t>(number_.total);
  if (settings_.compares_replicas()) fingerprint_ = replicas_.fingerprint(slots_, number);
  flags_.emplace();
  if (!settings_.has_round_flags()) return;
  Fingerprint fingerprint;
  fingerprint.add(number);
  if (settings_.compares_replicas()) fingerprint.add(fingerprint_);
  flags_->say(number_.round == 1, step_rounded_otherwise_, fingerprint.value());
}

// The flags for a bucket that goes now: with what this rank knows so far.
RoundFlags GradientReducer::Impl::current_flags() {
  if (!settings_.has_round_flags()) return {};
  raise_flags();
  RoundFlags flags = *flags_;
  const bool wishes = wished_bytes_ || wants_order();
  if (agree_first_ || weight_ || wishes || (round_ && round_->has_news)) flags.ask();
  return flags;
}

// Starts the agreement before waiting, if this rank knows that it is needed; then the answer comes
// with the last bucket.
void GradientReducer::Impl::announce(Failures& failures) {
  RoundFacts facts;
  facts.number = number_;
  facts.late = LateParts::count(slots_);
  facts.early = round_->early;
  facts.failed = round_->failed;
  facts.weight = weight_;
  facts.rounded_otherwise = step_rounded_otherwise_;
  facts.bytes = wished_bytes_;
  facts.reorders = wants_order() && !round_->is_captured;
  facts.gradients = equal_gradients_.fingerprint();
  if (settings_.compares_replicas()) {
    raise_flags();
    facts.replica = fingerprint_;
    facts.wants_look = looks_.wants_look();
  }
  round_->announced = failures.run([&] { agreement_->announce(facts); });
}

// Waits for each bucket, in the same order on all ranks. Empty: one has not ended within `limit`.
std::optional<GradientReducer::Impl::Heard> GradientReducer::Impl::hear(
    std::optional<std::chrono::nanoseconds> limit) const {
  Heard heard;
  for (const GradientBucket& bucket : buckets_) {
    if (bucket.refusal || bucket.handle == nullptr) return heard;
    if (!bucket.handle->wait(limit)) {
      if (limit && is_initialized()) return std::nullopt;
      return heard;  // in a forked child it never ends
    }
    const core::Outcome& outcome = bucket.handle->outcome();
    if (outcome.error) return heard;  // the buckets behind it need not end at all
    if (outcome.unused) continue;
    bucket.add_flags_to(heard.flags);
    heard.participants = outcome.contributors;
  }
  heard.all = true;
  return heard;
}

// Waits for the buckets. All ranks come to the same result.
bool GradientReducer::Impl::knows_whether_plain(std::optional<std::chrono::nanoseconds> limit) {
  if (round_->announced) round_->is_plain = false;
  if (round_->is_plain) return true;
  const std::optional<Heard> heard = hear(limit);
  if (!heard) return false;
  round_->is_plain = heard->all && !heard->flags.asked() && heard->flags.alike();
  if (!*round_->is_plain) return true;
  looks_.fingerprints_were_alike();
  totals_.participants = heard->participants;
  round_->has_results = true;
  return true;
}

std::optional<bool> GradientReducer::Impl::must_agree(std::chrono::nanoseconds limit) {
  if (alone_ || !round_) return false;  // synchronize() has ended it meanwhile
  if (round_->agreed) return false;
  if (!knows_whether_plain(limit)) return std::nullopt;
  return !*round_->is_plain;
}

// After a round. Where the next one will hardly be plain, the ranks agree at once, so that nobody
// waits first for the buckets and then for the agreement.
bool GradientReducer::Impl::next_round_may_be_plain() const {
  if (!settings_.has_round_flags() || round_failed_) return false;
  if (!round_->announced) return true;
  if (totals_.late > 0 || totals_.weighted > 0) return false;
  const std::optional<Heard> heard = hear(std::nullopt);
  return heard->all && heard->flags.alike();
}

// All collectives of a round that is not plain, other than those of gradients.
void GradientReducer::Impl::agree() noexcept {
  const PlainMode plain;
  OpenRound& round = *round_;
  if (round.agreed) return;
  try {
    const c10::OptionalStreamGuard as_round(round.stream);  // it may be another thread
    if (!round.announced) announce(round.failures);
    if (round.announced) round.has_results = use_agreement();
    if (totals_.failed > 0) round.of_others.run([&] { refuse_failed_ranks(); });
  } catch (...) {
    round.agree_exception = std::current_exception();
  }
  round.agreed = true;
}

// False: the ranks can't make use of what has been reduced.
bool GradientReducer::Impl::use_agreement() {
  Failures& failures = round_->failures;
  Failures agreement;
  if (!agreement.run([&] { totals_ = agreement_->agree(); })) {
    const Error error = *agreement.first();
    // Buckets that other ranks do not have would never end.
    if (error.code() == ErrorCode::Mismatch) break_down(plans_differ(error));
    failures.run([&] { throw error; });
    return false;
  }
  if (!totals_.same_number) {
    failures.run([&] { refuse_round_number(); });
    return false;
  }
  if (totals_.bytes.others > 0) hear_of_bytes();
  if (totals_.reorders) failures.run([&] { hear_of_order(); });
  hear_of_gradients();
  const bool weighted = failures.run([&] { use_weights(); });
  failures.run([&] {
    if (totals_.late == 0) return;
    late_.agree(slots_);
    late_.wait(scale_);
  });
  if (totals_.early > 0) failures.run([&] { refuse_early_step(round_->early); });
  if (totals_.unlike_steps) failures.run([&] { refuse_unlike_steps(); });
  failures.run([&] { compare_replicas(); });
  return weighted;
}

// `error` shows the plans of two ranks, which are too long to be read. All ranks have got it, so
// they can look together for what differs.
Error GradientReducer::Impl::plans_differ(const Error& error) const {
  std::vector<Fact> facts{{"the option list", settings_.text()}};
  for (size_t i = 0; i < layouts_.size(); ++i) {
    const GradientLayout& layout = layouts_[i];
    facts.push_back({core::concat("parameter \"", layout.name, "\""),
                     core::concat(layout.dtype, " ", core::shape_text(layout.sizes), " strides ",
                                  core::shape_text(layout.strides),
                                  ", requires_grad = ", layout.trained ? "true" : "false",
                                  layout.sparse ? ", sparse gradients" : "", ", at position ", i,
                                  ", in bucket ", slots_[i].bucket_number)});
  }
  Failures look;
  look.run([&] { require_agreement(name_ + ".plan", facts, "", settings_.process_set); });
  if (!look.first() || look.first()->code() != ErrorCode::Mismatch) return error;
  return Error(
      ErrorCode::Mismatch,
      core::concat(look.first()->what(), ". Give all ranks the same options, and the same ",
                   "parameters in the same order, with the same dtypes, shapes and strides; ",
                   "freeze or unfreeze (requires_grad) a parameter on all ranks alike"));
}

void GradientReducer::Impl::break_down(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    broken_ = error;
    is_broken_ = true;
    steady_task_ = kNoTask;
  }
  for (GradientSlot& slot : slots_) slot.abandon(false);
  throw Error(error);
}

// The gradients of different backward passes were put together: no rank can use them. All begin a
// new step after it.
void GradientReducer::Impl::refuse_round_number() {
  const std::vector<RoundNumber> numbers = agreement_->numbers_of_ranks(number_);
  std::map<std::pair<int64_t, int64_t>, std::vector<int>> ranks_in;  // [step, round]
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i].step == 0) continue;  // it has joined
    ranks_in[{numbers[i].step, numbers[i].round}].push_back(settings_.ranks[i]);
    number_.step = std::max(number_.step, numbers[i].step);
  }
  std::string text;
  for (const auto& [number, ranks] : ranks_in) {
    text += core::concat(text.empty() ? "" : ", ", core::name_ranks(ranks), " in backward ",
                         number.second, " of step ", number.first);
  }
  throw Error(
      ErrorCode::Mismatch,
      core::concat(
          "\"", name_, "\": the ranks reduce gradients of different backward passes: ", text,
          ". Run backward() equally often on all ranks in every step (a rank may leave it ",
          "out where the others run it once); use no_sync() for passes that only add up locally ",
          "(in C++ also {.wait_in = WaitIn::Step}, which reduces once in a step). If an exception ",
          "on a rank came between backward() and step(), call broadcast_parameters() and ",
          "broadcast_optimizer_state(). No rank uses these gradients; all begin a new step now"));
}

void GradientReducer::Impl::refuse_failed_ranks() {
  const std::string ranks = agreement_->ranks_that(round_->failed);
  throw Error(ErrorCode::InvalidArgument,
              core::concat("\"", name_, "\": the reduction of gradients failed on ", ranks,
                           "; see the error there. No rank takes the step"));
}

// The bucket is about to be submitted.
void GradientReducer::Impl::see_gradients(const GradientBucket& bucket) {
  for (const size_t slot : bucket.slots()) {
    if (slots_[slot].fired()) equal_gradients_.see(slot, slots_[slot].parameter().grad());
  }
}

void GradientReducer::Impl::hear_of_gradients() {
  const size_t count = settings_.ranks.size();
  const bool alike = totals_.same_gradients &&
                     totals_.participants == static_cast<int>(count);  // nobody has joined
  if (!equal_gradients_.heard(alike) || settings_.set_rank != 0) return;
  const std::string ranks = count == 2 ? "both ranks" : core::concat("all ", count, " ranks");
  core::log(core::LogLevel::Warn,
            core::concat("\"", name_, "\": ", ranks, " had the same gradients in the first ",
                         EqualGradients::kRounds, " reductions, so together they learn no more ",
                         "than one rank would. Give each rank other data: by ",
                         "DistributedRandomSampler or DistributedSequentialSampler, in Python by ",
                         "DistributedSampler; or by another seed on each rank"));
}

void GradientReducer::Impl::compare_replicas() {
  if (totals_.replicas_alike) return looks_.fingerprints_were_alike();
  if (!totals_.look) return looks_.did_not_look();
  looks_.looked();
  const std::optional<Error> error =
      replicas_.find_unlike(name_, slots_, settings_, static_cast<uint64_t>(number_.total));
  if (error) throw Error(*error);
}

void GradientReducer::Impl::use_weights() {
  if (totals_.weighted == 0) return;
  if (totals_.weighted != totals_.participants) {
    const std::string ranks = agreement_->ranks_that(!weight_);
    throw Error(ErrorCode::Mismatch,
                core::concat("\"", name_, "\": ", ranks, " did not call set_weight() in this ",
                             "step, but others did; call it on all ranks or on none"));
  }
  refuse_weight_that_has_left();
  if (totals_.weight == 0) return;  // no rank had anything
  // The reduction has divided by the number of ranks.
  scale_ = totals_.participants / totals_.weight;
  number_share_ = *weight_ * scale_;
}

// With WaitIn::Step a rank may have joined since it has submitted its buckets: their sums hold its
// gradients, and nobody knows its weight. All ranks that are left find the same.
void GradientReducer::Impl::refuse_weight_that_has_left() const {
  for (const GradientBucket& bucket : buckets_) {
    if (bucket.handle == nullptr || !bucket.handle->wait(std::nullopt)) continue;
    const core::Outcome& outcome = bucket.handle->outcome();
    if (outcome.error || outcome.unused || outcome.contributors <= totals_.participants) continue;
    throw Error(ErrorCode::RankLeft,
                core::concat("\"", name_, "\": a rank called join() after set_weight() and ",
                             "backward() and before the step, which has its gradients without ",
                             "their weight."));
  }
}

void GradientReducer::Impl::refuse_early_step(bool early) {
  const std::string ranks = agreement_->ranks_that(early);
  throw Error(
      ErrorCode::InvalidArgument,
      core::concat(
          "\"", name_, "\": ", ranks, " called step() before any parameter had gradients from ",
          "backward_passes_per_step = ", settings_.passes, " backward passes. ",
          "The parameters are unchanged: call zero_grad() and run all passes; or call ",
          "synchronize() before step() to take a step with the gradients so far (as where ",
          "each pass trains other parameters)"));
}

// Parameters and state may differ by rounding now, too little for the comparison of replicas.
void GradientReducer::Impl::refuse_unlike_steps() {
  const std::string ranks = agreement_->ranks_that(step_rounded_otherwise_);
  throw Error(
      ErrorCode::Mismatch,
      core::concat("\"", name_, "\": ", ranks, " took the last step fused and the other ranks did ",
                   "not (FusedStep::WherePossible; fused_step_refusal() there says why), ",
                   "so the last bits of the parameters may differ. Call set_fused_step() ",
                   "alike on all ranks, then broadcast_parameters() and ",
                   "broadcast_optimizer_state()"));
}

void GradientReducer::Impl::check_undisputed(size_t slot) const {
  if (!late_.disputed(slot)) return;
  throw Error(ErrorCode::InvalidArgument,
              core::concat("gradient of \"", slots_[slot].name(), "\": one rank dropped it ",
                           "(zero_grad()) while it was being reduced, and another did not, or had ",
                           "not begun; call synchronize() before zero_grad() on all ranks"));
}

}  // namespace horon
