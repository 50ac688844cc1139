#include "horon/torch_bindings/lr/schedule.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <string_view>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::lr {
namespace {

template <class... Values>
[[noreturn]] void refuse_schedule(const Values&... values) {
  throw Error(ErrorCode::InvalidArgument, core::concat("horon::lr::", values...));
}

void check_length(std::string_view schedule, std::string_view what, double value) {
  if (std::isfinite(value) && value > 0) return;
  refuse_schedule(schedule, ": ", what, " is ", value, "; give a finite number above 0");
}

void check_factor(std::string_view schedule, std::string_view what, double value) {
  if (std::isfinite(value) && value >= 0) return;
  refuse_schedule(schedule, ": ", what, " is ", value, "; give a finite number of 0 or more");
}

void check_milestones(std::string_view schedule, const std::vector<double>& milestones) {
  double last = 0;
  for (const double milestone : milestones) {
    if (!std::isfinite(milestone) || milestone <= last) {
      refuse_schedule(schedule, ": milestone ", milestone, " comes after ", last,
                      "; give milestones above 0, each above the one before");
    }
    last = milestone;
  }
}

// How far rounding may move a position. A position that counts from a milestone, as 5.3 - 5, has
// the rounding of the position in the whole training. Steps are further apart, whatever the unit.
double rounding_at(double position) {
  return std::max(1e-9, 4 * std::numeric_limits<double>::epsilon() * std::abs(position));
}

// How many milestones are at or before the position, but for rounding.
size_t passed(const std::vector<double>& milestones, double position) {
  const auto next =
      std::upper_bound(milestones.begin(), milestones.end(), position + rounding_at(position));
  return static_cast<size_t>(next - milestones.begin());
}

double share_of(double position, double length) { return std::min(position / length, 1.0); }

double between(double from, double to, double share) { return from + (to - from) * share; }

double on_half_wave(double from, double to, double share) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * share)) / 2;
}

void check_cycle(std::string_view schedule, const OneCycle& cycle) {
  check_length(schedule, "length", cycle.length);
  check_length(schedule, "peak", cycle.peak);
  check_factor(schedule, "start", cycle.start);
  check_factor(schedule, "end", cycle.end);
  const double rest = cycle.length - (cycle.three_phases ? 2 : 1) * cycle.peak;
  if (rest > 0) return;
  refuse_schedule(schedule, ": the peak at ", cycle.peak, " leaves no room for the ",
                  cycle.three_phases ? "third" : "second", " phase in a length of ", cycle.length);
}

// Through these values: at 0, at the peak, at twice the peak (of three phases), at the end.
struct CycleValues {
  double start, peak, back, end;
};

Schedule cycle_through(const OneCycle& cycle, const CycleValues& values) {
  return [cycle, values](double position) {
    const auto part = [&](double from, double to, double begin, double end) {
      const double share = share_of(position - begin, end - begin);
      return cycle.linear ? between(from, to, share) : on_half_wave(from, to, share);
    };
    if (position <= cycle.peak) return part(values.start, values.peak, 0, cycle.peak);
    if (!cycle.three_phases) return part(values.peak, values.end, cycle.peak, cycle.length);
    const double back = 2 * cycle.peak;
    if (position <= back) return part(values.peak, values.back, cycle.peak, back);
    return part(values.back, values.end, back, cycle.length);
  };
}

// floor(position / every). If the position is a multiple but for rounding, as 0.3 is of 0.1, that
// multiple.
double whole_lengths(double position, double every) {
  const double nearest = std::nearbyint(position / every);
  const bool is_near = std::abs(nearest * every - position) <= rounding_at(position);
  return is_near ? nearest : std::floor(position / every);
}

}  // namespace

Schedule constant(double factor) {
  check_factor("constant", "factor", factor);
  return [factor](double /*position*/) { return factor; };
}

Schedule warm_up(double length, double start) {
  check_length("warm_up", "length", length);
  check_factor("warm_up", "start", start);
  return [=](double position) { return between(start, 1, share_of(position, length)); };
}

Schedule cosine(double length, double end) {
  check_length("cosine", "length", length);
  check_factor("cosine", "end", end);
  return [=](double position) { return on_half_wave(1, end, share_of(position, length)); };
}

Schedule polynomial(double length, double power, double end) {
  check_length("polynomial", "length", length);
  check_length("polynomial", "power", power);
  check_factor("polynomial", "end", end);
  return [=](double position) {
    return end + (1 - end) * std::pow(1 - share_of(position, length), power);
  };
}

Schedule step_decay(double every, double gamma) {
  check_length("step_decay", "every", every);
  check_factor("step_decay", "gamma", gamma);
  return [=](double position) { return std::pow(gamma, whole_lengths(position, every)); };
}

Schedule multi_step(std::vector<double> milestones, double gamma) {
  check_milestones("multi_step", milestones);
  check_factor("multi_step", "gamma", gamma);
  return [milestones = std::move(milestones), gamma](double position) {
    return std::pow(gamma, static_cast<double>(passed(milestones, position)));
  };
}

Schedule exponential(double gamma) {
  check_factor("exponential", "gamma", gamma);
  return [gamma](double position) { return std::pow(gamma, position); };
}

Schedule inverse_square_root(double before) {
  check_length("inverse_square_root", "before", before);
  return [before](double position) { return std::sqrt(before / (before + position)); };
}

Schedule one_cycle(const OneCycle& cycle) {
  check_cycle("one_cycle", cycle);
  return cycle_through(cycle, {cycle.start, 1, cycle.start, cycle.end});
}

Schedule one_cycle_momentum(const OneCycle& cycle, double high, double low) {
  check_cycle("one_cycle_momentum", cycle);
  check_factor("one_cycle_momentum", "high", high);
  check_factor("one_cycle_momentum", "low", low);
  return cycle_through(cycle, {high, low, high, high});
}

Schedule sequence(std::vector<Schedule> schedules, std::vector<double> milestones) {
  if (schedules.size() != milestones.size() + 1) {
    refuse_schedule("sequence: ", schedules.size(), " schedules with ", milestones.size(),
                    " milestones; give one milestone less than schedules");
  }
  for (const Schedule& schedule : schedules) {
    if (!schedule) refuse_schedule("sequence: a schedule is null");
  }
  check_milestones("sequence", milestones);
  return [schedules = std::move(schedules), milestones = std::move(milestones)](double position) {
    const size_t index = passed(milestones, position);
    return schedules[index](index == 0 ? position
                                       : std::max(position - milestones[index - 1], 0.0));
  };
}

}  // namespace horon::lr
