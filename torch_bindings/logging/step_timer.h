// Where the time of training steps goes, on each rank, and which rank the others wait for.
//
//   const auto waited = [&] { return optimizer.exposed_wait_seconds(); };
//   horon::StepTimer timer({.exposed_wait_seconds = waited});
//   for (auto& batch : *loader) {
//     ...
//     { const auto t = timer.time(horon::Phase::Forward); ... }
//     { const auto t = timer.time(horon::Phase::Backward); loss.backward(); }
//     { const auto t = timer.time(horon::Phase::Optimizer); optimizer.step(); }
//     timer.end_step();
//   }
//   horon::print0(timer.gather().text());     // collective
//
//   100 steps of 103.2 ms: data 4.1, forward 30.2, backward 51.0, communication 11.7,
//   optimizer 6.0, other 0.2; rank 2 is slow: 8.1 ms behind the median rank, 7.9 of it in data
//
// Times are those of the host. Communication is the exposed part: what a rank waits for gradients,
// taken out of the phase in which it waits. On a GPU the host goes ahead of the device: the
// device's work counts in the phase in which the host waits for it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "horon/ops/session/process_set.h"

namespace horon {

enum class Phase : uint8_t { Data, Forward, Backward, Communication, Optimizer, Other };
inline constexpr size_t kPhases = 6;

// Seconds of one step by phase; Other is what no scope has timed.
using PhaseSeconds = std::array<double, kPhases>;

struct RankTimes {
  int rank = 0;
  int64_t steps = 0;
  PhaseSeconds mean{};  // of its steps
  double step() const;  // their sum
  double work() const;  // without communication: what others may have to wait for
};

struct Straggler {
  int rank = 0;
  double behind = 0;  // seconds of work in a step beyond the median rank
  Phase phase = Phase::Other;
  double in_phase = 0;  // seconds of `behind` in the phase where it loses most
};

// The same on all ranks.
struct StepTimes {
  std::vector<RankTimes> ranks;  // of the set, that have made steps
  PhaseSeconds mean{};           // over all steps of all ranks
  std::optional<Straggler> straggler;

  double step() const;
  std::string text() const;
};

struct StepTimerOptions {
  std::string name = {};  // of its collectives; empty: "step_times.noname.N"
  ProcessSet process_set = {};
  // Seconds waited for communication since the start; those of an optimizer or a reducer.
  std::function<double()> exposed_wait_seconds = {};
  double straggler_share = 0.05;       // share of a step by which a rank must be behind
  std::function<double()> clock = {};  // seconds; default: a steady one
};

// One thread at a time.
class StepTimer {
 public:
  explicit StepTimer(StepTimerOptions options = {});

  // Ends with the scope. Scopes don't nest, since the time of an inner one would count twice:
  // time() throws Error(InvalidArgument) within one.
  class Scope {
   public:
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class StepTimer;
    Scope(StepTimer& timer, Phase phase);
    StepTimer& timer_;
    const Phase phase_;
    const double begin_, waited_before_;
  };
  [[nodiscard]] Scope time(Phase phase) { return Scope(*this, phase); }

  // A step lasts from the end of the one before; the first from the making of the timer. Throws
  // Error(InvalidArgument) within a scope, whose time would go into the next step.
  void end_step();

  // Of the steps since the gather before. Collective: a few numbers from each rank.
  StepTimes gather();

 private:
  double waited() const;
  void refuse_within_scope(std::string_view call) const;

  StepTimerOptions options_;
  PhaseSeconds step_{}, total_{};
  int64_t steps_ = 0;
  double step_begin_ = 0, waited_before_ = 0;
  std::optional<Phase> timed_;  // the scope that lives
};

namespace torch_detail {
// Means, median and straggler of these ranks.
StepTimes summarize(std::vector<RankTimes> ranks, double straggler_share);
}  // namespace torch_detail

}  // namespace horon
