// How the learning rate goes over a training: pure functions, put together to one.
//
//   const auto schedule = horon::lr::sequence(
//       {horon::lr::warm_up(5, 1.0 / horon::size()), horon::lr::cosine(85)}, {5});  // in epochs
//   horon::LrScheduler scheduler(optimizer, schedule, {.steps_per_unit = steps_in_an_epoch});
//
// A schedule gives a factor for a position. Each parameter group has its own base learning rate,
// and a scheduler multiplies it by the factor. A position is the number of steps taken so far, or
// of epochs (then with a fraction for what there is of the next): a scheduler says which, and all
// lengths of its schedule are in that unit. Nothing is kept from one position to the next, so that
// any position can be asked for, in any order, from any thread, and gives the same on all ranks.
#pragma once

#include <functional>
#include <vector>

namespace horon::lr {

// Any function of the position (from 0 up) is a schedule; below are the usual ones. Those with a
// length stay at their last value after it. All of them throw Error(InvalidArgument) that names the
// argument: a length that is not above 0, a factor below 0.
using Schedule = std::function<double(double position)>;

Schedule constant(double factor = 1);

// From `start` to 1 in a straight line (gradual warm-up, Goyal et al. 2017, section 2.2):
// start + (1 - start) t / length. In that paper the rate rises from that of one batch to that of k:
// `start` is 1 / k.
Schedule warm_up(double length, double start);

// end + (1 - end) (1 + cos(pi t / length)) / 2 (Loshchilov and Hutter 2017, without restarts).
Schedule cosine(double length, double end = 0);

// end + (1 - end) (1 - t / length)^power. Power 1 is a straight line; LARS was trained with 2.
Schedule polynomial(double length, double power = 1, double end = 0);

// gamma^floor(t / every).
Schedule step_decay(double every, double gamma = 0.1);
// gamma^n, where n milestones are at or before t. Milestones are in rising order.
Schedule multi_step(std::vector<double> milestones, double gamma = 0.1);

// gamma^t.
Schedule exponential(double gamma);

// sqrt(before / (before + t)): what follows a warm-up of length `before` (Vaswani et al. 2017), as
// sequence({warm_up(w, 0), inverse_square_root(w)}, {w}).
Schedule inverse_square_root(double before);

// One rise and one fall, over a whole training (Smith and Topin 2018). The factor 1, the base
// learning rate, is the peak.
struct OneCycle {
  double length = 0;            // of the whole cycle
  double peak = 0;              // where the peak is: between 0 and length
  double start = 1.0 / 25;      // the factor at 0
  double end = 1.0 / 25 / 1e4;  // the factor at the end
  bool three_phases = false;    // from the peak back to `start` at 2 peak, then to `end`
  bool linear = false;          // in straight lines, instead of half waves of the cosine
};
Schedule one_cycle(const OneCycle& cycle);
// The momentum that goes with it, for LrSchedulerOptions::momentum: not a factor but the value
// itself, `low` at the peak and `high` at both ends.
Schedule one_cycle_momentum(const OneCycle& cycle, double high = 0.95, double low = 0.85);

// The first schedule up to the first milestone, and so on: each begins at its own 0 at the
// milestone before it. One milestone less than schedules, in rising order.
Schedule sequence(std::vector<Schedule> schedules, std::vector<double> milestones);

}  // namespace horon::lr
