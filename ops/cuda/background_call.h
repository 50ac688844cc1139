// Runs a call that may take long on a separate thread, for a caller that must not wait for it.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "horon/core/base/blocked_signals.h"
#include "horon/core/base/current_error.h"

namespace horon::ops {

// One thread at a time.
template <class Result>
class BackgroundCall {
 public:
  // `unwanted` gets the result if this object is destroyed before take() has returned it. It runs
  // on another thread, if one can be made; it may take long, and must throw nothing.
  explicit BackgroundCall(std::function<Result()> call, std::function<void(Result)> unwanted = {})
      : state_(std::make_shared<State>()) {
    state_->unwanted = std::move(unwanted);
    const core::BlockedSignals blocked;  // the thread inherits them
    std::thread([state = state_, call = std::move(call)] {
      std::optional<Result> result;
      std::optional<Error> error;
      try {
        result.emplace(call());
      } catch (...) {
        error = core::current_error();
      }
      std::unique_lock lock(state->mutex);
      if (result && state->is_given_up && state->unwanted) {
        lock.unlock();
        state->unwanted(std::move(*result));
        return;
      }
      state->result = std::move(result);
      state->error = std::move(error);
    }).detach();
  }
  ~BackgroundCall() {
    const std::lock_guard lock(state_->mutex);
    state_->is_given_up = true;
    if (!state_->result || !state_->unwanted) return;
    try {
      const core::BlockedSignals blocked;
      std::thread([state = state_] { state->unwanted(std::move(*state->result)); }).detach();
    } catch (...) {  // no thread can be started: then on this one
      state_->unwanted(std::move(*state_->result));
    }
  }
  BackgroundCall(const BackgroundCall&) = delete;
  BackgroundCall& operator=(const BackgroundCall&) = delete;

  // nullopt: the call has not returned. Throws, as Error, what the call has thrown. Gives the
  // result once.
  std::optional<Result> take() {
    const std::lock_guard lock(state_->mutex);
    if (state_->error) throw Error(*state_->error);
    return std::exchange(state_->result, std::nullopt);
  }

 private:
  struct State {
    std::mutex mutex;
    std::optional<Result> result;
    std::optional<Error> error;
    bool is_given_up = false;
    std::function<void(Result)> unwanted;  // not changed once the thread runs
  };
  const std::shared_ptr<State> state_;
};

}  // namespace horon::ops
