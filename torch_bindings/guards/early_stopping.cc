#include "horon/torch_bindings/guards/early_stopping.h"

#include <cmath>
#include <cstring>

#include <torch/serialize/archive.h>

#include "horon/core/base/error.h"
#include "horon/core/base/parse_number.h"
#include "horon/core/base/text.h"

namespace horon {

using core::concat;

namespace {

struct Numbers {
  double best = 0;
  int64_t checks = 0;
  int64_t best_check = 0;
};

// The same bytes for the same state: there are many NaNs.
std::string to_bytes(const EarlyStopping::State& state) {
  const EarlyStopping::State fresh;
  const Numbers numbers{.best = std::isnan(state.best) ? fresh.best : state.best,
                        .checks = state.checks,
                        .best_check = state.best_check};
  std::string bytes(reinterpret_cast<const char*>(&numbers), sizeof(numbers));
  return bytes + state.reason;
}

EarlyStopping::State state_from(const std::string& bytes) {
  Numbers numbers;
  std::memcpy(&numbers, bytes.data(), sizeof(numbers));
  return {.checks = numbers.checks,
          .best = numbers.best,
          .best_check = numbers.best_check,
          .reason = bytes.substr(sizeof(numbers))};
}

std::string shown(const EarlyStoppingOptions& options) {
  using core::number_text;
  return concat("better ", torch_detail::name_of(options.better), ", patience ", options.patience,
                ", min_delta ", number_text(options.min_delta), ", good_enough ",
                options.good_enough ? number_text(*options.good_enough) : "none",
                ", stop_at_nonfinite ", options.stop_at_nonfinite ? "true" : "false");
}

}  // namespace

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)),
      decisions_("early_stopping", options_.name, options_.agree_on, options_.process_set,
                 shown(options_)) {
  if (options_.patience < 1) {
    throw Error(ErrorCode::InvalidArgument,
                concat("early stopping: patience is ", options_.patience, "; give 1 or more"));
  }
  if (!(options_.min_delta >= 0)) {
    throw Error(ErrorCode::InvalidArgument,
                concat("early stopping: min_delta is ", options_.min_delta, "; give 0 or more"));
  }
  if (options_.good_enough && std::isnan(*options_.good_enough)) {
    throw Error(ErrorCode::InvalidArgument,
                "early stopping: good_enough is NaN, which no value can be compared with");
  }
}

bool EarlyStopping::check(double value) {
  const torch_detail::AgreedDecision decision =
      decisions_.agree({.value = value, .count = state_.checks, .state = to_bytes(state_)});
  state_ = state_from(decision.state);
  const double agreed = decision.value;
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

void EarlyStopping::save(::torch::serialize::OutputArchive& archive) const {
  archive.write("checks", c10::IValue(state_.checks));
  archive.write("best", c10::IValue(state_.best));
  archive.write("best_check", c10::IValue(state_.best_check));
  archive.write("reason", c10::IValue(state_.reason));
}

void EarlyStopping::load(::torch::serialize::InputArchive& archive) {
  c10::IValue checks, best, best_check, reason;
  if (!archive.try_read("checks", checks) || !archive.try_read("best", best) ||
      !archive.try_read("best_check", best_check) || !archive.try_read("reason", reason) ||
      !checks.isInt() || !best.isDouble() || !best_check.isInt() || !reason.isString()) {
    throw Error(ErrorCode::InvalidArgument,
                "early stopping: the archive holds no state of an EarlyStopping");
  }
  state_ = {.checks = checks.toInt(),
            .best = best.toDouble(),
            .best_check = best_check.toInt(),
            .reason = reason.toStringRef()};
}

::torch::serialize::OutputArchive& operator<<(::torch::serialize::OutputArchive& archive,
                                              const EarlyStopping& stopping) {
  stopping.save(archive);
  return archive;
}

::torch::serialize::InputArchive& operator>>(::torch::serialize::InputArchive& archive,
                                             EarlyStopping& stopping) {
  stopping.load(archive);
  return archive;
}

}  // namespace horon
