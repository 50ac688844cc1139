#include "horon/torch_bindings/logging/step_timer.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/call_names.h"

namespace horon {
namespace {

constexpr std::array<std::string_view, kPhases> kPhaseNames = {
    "data", "forward", "backward", "communication", "optimizer", "other"};
constexpr auto kCommunication = static_cast<size_t>(Phase::Communication);
constexpr auto kOther = static_cast<size_t>(Phase::Other);

struct SentTimes {
  int64_t steps = 0;
  PhaseSeconds total{};
};

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double sum(const PhaseSeconds& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

std::string milliseconds(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", seconds * 1000);
  return text.data();
}

// Of two values in the middle the lower one: of two ranks the slower is compared with the faster.
double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <class Of>
double median_of(const std::vector<RankTimes>& ranks, const Of& of) {
  std::vector<double> values;
  for (const RankTimes& times : ranks) values.push_back(of(times));
  return median(std::move(values));
}

std::optional<Straggler> find_straggler(const std::vector<RankTimes>& ranks, double least) {
  const auto slowest =
      std::max_element(ranks.begin(), ranks.end(),
                       [](const RankTimes& a, const RankTimes& b) { return a.work() < b.work(); });
  Straggler found;
  found.rank = slowest->rank;
  found.behind =
      slowest->work() - median_of(ranks, [](const RankTimes& times) { return times.work(); });
  if (found.behind <= least) return std::nullopt;
  for (size_t phase = 0; phase < kPhases; ++phase) {
    if (phase == kCommunication) continue;
    const double usual =
        median_of(ranks, [phase](const RankTimes& times) { return times.mean[phase]; });
    if (slowest->mean[phase] - usual <= found.in_phase) continue;
    found.in_phase = slowest->mean[phase] - usual;
    found.phase = static_cast<Phase>(phase);
  }
  return found;
}

}  // namespace

double RankTimes::step() const { return sum(mean); }
double RankTimes::work() const { return sum(mean) - mean[kCommunication]; }
double StepTimes::step() const { return sum(mean); }

StepTimes torch_detail::summarize(std::vector<RankTimes> ranks, double straggler_share) {
  StepTimes times;
  int64_t steps = 0;
  for (const RankTimes& of_rank : ranks) {
    steps += of_rank.steps;
    for (size_t phase = 0; phase < kPhases; ++phase) {
      times.mean[phase] += of_rank.mean[phase] * static_cast<double>(of_rank.steps);
    }
  }
  for (double& seconds : times.mean) seconds /= static_cast<double>(std::max<int64_t>(steps, 1));
  times.ranks = std::move(ranks);
  if (!times.ranks.empty()) {
    times.straggler = find_straggler(times.ranks, straggler_share * times.step());
  }
  return times;
}

std::string StepTimes::text() const {
  using core::concat;
  if (ranks.empty()) return "no steps";
  const auto most = std::max_element(
      ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.steps < b.steps; });
  std::string line = concat(most->steps, most->steps == 1 ? " step of " : " steps of ",
                            milliseconds(step()), " ms: ");
  for (size_t phase = 0; phase < kPhases; ++phase) {
    line += concat(phase == 0 ? "" : ", ", kPhaseNames[phase], " ", milliseconds(mean[phase]));
  }
  if (!straggler) return line;
  return concat(line, "; rank ", straggler->rank, " is slow: ", milliseconds(straggler->behind),
                " ms behind the median rank, ", milliseconds(straggler->in_phase), " of it in ",
                kPhaseNames[static_cast<size_t>(straggler->phase)]);
}

StepTimer::StepTimer(StepTimerOptions options) : options_(std::move(options)) {
  if (!options_.clock) options_.clock = clock_seconds;
  step_begin_ = options_.clock();
  waited_before_ = waited();
}

double StepTimer::waited() const {
  return options_.exposed_wait_seconds ? options_.exposed_wait_seconds() : 0;
}

void StepTimer::refuse_within_scope(std::string_view call) const {
  if (!timed_) return;
  throw Error(ErrorCode::InvalidArgument,
              core::concat("StepTimer: ", call, " was called within the scope that times ",
                           kPhaseNames[static_cast<size_t>(*timed_)], "; end that scope first"));
}

StepTimer::Scope::Scope(StepTimer& timer, Phase phase)
    : timer_(timer), phase_(phase), begin_(timer.options_.clock()), waited_before_(timer.waited()) {
  timer_.refuse_within_scope("time()");
  timer_.timed_ = phase;
}

StepTimer::Scope::~Scope() {
  timer_.timed_.reset();
  const double waited = timer_.waited() - waited_before_;
  timer_.step_[static_cast<size_t>(phase_)] += timer_.options_.clock() - begin_ - waited;
}

void StepTimer::end_step() {
  refuse_within_scope("end_step()");
  const double now = options_.clock(), waited_now = waited();
  step_[kCommunication] += waited_now - waited_before_;
  step_[kOther] += now - step_begin_ - sum(step_);
  for (size_t phase = 0; phase < kPhases; ++phase) total_[phase] += step_[phase];
  ++steps_;
  step_ = {};
  step_begin_ = now;
  waited_before_ = waited_now;
}

StepTimes StepTimer::gather() {
  const ProcessSet& set = options_.process_set;
  // Before the times are taken: a call that is refused leaves them to the next one.
  const torch_detail::BlockingCallName name(options_.name, "step_times", set.id());
  const std::string& call = name.get();
  const SentTimes own{std::exchange(steps_, 0), std::exchange(total_, {})};
  const std::string bytes(reinterpret_cast<const char*>(&own), sizeof(own));
  const std::vector<std::string> all = allgather_bytes(bytes, {.name = call, .process_set = set});
  const std::vector<int> ranks = set.ranks();
  std::vector<RankTimes> times;
  for (size_t i = 0; i < all.size(); ++i) {
    SentTimes sent;
    if (all[i].size() != sizeof(sent)) continue;  // this rank has joined
    std::memcpy(&sent, all[i].data(), sizeof(sent));
    if (sent.steps == 0) continue;
    RankTimes of_rank{ranks[i], sent.steps, sent.total};
    for (double& seconds : of_rank.mean) seconds /= static_cast<double>(sent.steps);
    times.push_back(of_rank);
  }
  return torch_detail::summarize(std::move(times), options_.straggler_share);
}

}  // namespace horon
