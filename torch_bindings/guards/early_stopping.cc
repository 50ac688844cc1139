#include "horon/torch_bindings/guards/early_stopping.h"

#include <cmath>

#include "horon/core/base/error.h"
#include "horon/core/base/parse_number.h"
#include "horon/core/base/text.h"

namespace horon {

using core::concat;

EarlyStopping::EarlyStopping(EarlyStoppingOptions options) : options_(std::move(options)) {
  if (options_.patience < 1) {
    throw Error(ErrorCode::InvalidArgument,
                concat("early stopping: patience is ", options_.patience, "; give 1 or more"));
  }
  if (!(options_.min_delta >= 0)) {
    throw Error(ErrorCode::InvalidArgument,
                concat("early stopping: min_delta is ", options_.min_delta, "; give 0 or more"));
  }
}

bool EarlyStopping::check(double value) {
  const double agreed =
      torch_detail::agreed_value(value, state_.checks + 1, options_.agree_on, "early_stopping",
                                 options_.name, options_.process_set);
  ++state_.checks;
  const double by = std::isnan(state_.best) ? 0 : options_.min_delta;
  if (std::isfinite(agreed) && torch_detail::is_better(agreed, state_.best, options_.better, by)) {
    state_.best = agreed;
    state_.best_check = state_.checks;
  }
  if (state_.reason.empty()) state_.reason = reason_for(agreed);
  return !state_.reason.empty();
}

std::string EarlyStopping::reason_for(double value) const {
  using core::number_text;
  if (options_.stop_at_nonfinite && !std::isfinite(value)) {
    return concat("the value is ", value, " in check ", state_.checks);
  }
  if (options_.good_enough &&
      !torch_detail::is_better(*options_.good_enough, value, options_.better) &&
      !std::isnan(value)) {
    return concat(number_text(value), " in check ", state_.checks, " is as good as ",
                  number_text(*options_.good_enough));
  }
  if (state_.checks - state_.best_check < options_.patience) return {};
  const std::string best =
      state_.best_check == 0
          ? "there was none before"
          : concat("the best was ", number_text(state_.best), " in check ", state_.best_check);
  return concat("no improvement in ", options_.patience,
                options_.patience == 1 ? " check; " : " checks; ", best);
}

}  // namespace horon
