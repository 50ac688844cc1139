// A call that may take long, on a thread of its own, for somebody who must not wait for it.
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

// If it is destroyed before the call has returned, the result goes to nobody. One thread at a time.
template <class Result>
class BackgroundCall {
 public:
  explicit BackgroundCall(std::function<Result()> call) : state_(std::make_shared<State>()) {
    const core::BlockedSignals blocked;  // the thread inherits them
    std::thread([state = state_, call = std::move(call)] {
      std::optional<Result> result;
      std::optional<Error> error;
      try {
        result.emplace(call());
      } catch (...) {
        error = core::current_error();
      }
      const std::lock_guard lock(state->mutex);
      state->result = std::move(result);
      state->error = std::move(error);
    }).detach();
  }
  BackgroundCall(const BackgroundCall&) = delete;
  BackgroundCall& operator=(const BackgroundCall&) = delete;

  // Nothing: it has not returned. Throws, as Error, what the call has thrown. Gives the result
  // once.
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
  };
  const std::shared_ptr<State> state_;
};

}  // namespace horon::ops
