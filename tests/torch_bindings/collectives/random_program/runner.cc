#include "horon/tests/torch_bindings/collectives/random_program/runner.h"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>

#include <ATen/ATen.h>

#include "horon/core/base/error.h"
#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/collectives/random_program/model.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/collectives.h"

namespace horon::random_program {
namespace {

std::string shown(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.scalar_type() << " " << tensor.sizes();
  if (tensor.numel() <= 40) out << "\n" << tensor;
  return std::move(out).str();
}

}  // namespace

Runner::Runner(const Program& program, const std::vector<bool>& enabled)
    : program_(program),
      enabled_(enabled),
      own_(program.seed * 31 + static_cast<unsigned>(rank())) {
  sets_[0] = ProcessSet();
}

std::string Runner::run() {
  for (at_ = 0; at_ < program_.steps.size(); ++at_) {
    const Step& now = program_.steps[at_];
    // A set whose step was left out is not there.
    if (enabled_[at_] && (now.kind == Step::Kind::MakeSet || sets_.contains(now.set))) step(now);
  }
  for (const auto& [index, set] : sets_) {
    if (index != 0) remove_process_set(set);
  }
  for (const std::string& failure : allgather_bytes(failure_)) {
    if (!failure.empty()) return failure;
  }
  return {};
}

void Runner::step(const Step& step) {
  try {
    switch (step.kind) {
      case Step::Kind::Batch:
        return batch(step);
      case Step::Kind::Blocking:
        return blocking(step);
      case Step::Kind::MakeSet:
        sets_[step.set] = add_process_set(step.ranks);
        return;
      case Step::Kind::RemoveSet:
        remove_process_set(sets_.at(step.set));
        sets_.erase(step.set);
        return;
      case Step::Kind::Barrier:
        if (sets_.at(step.set).includes_me()) barrier(sets_.at(step.set));
        return;
      case Step::Kind::Join:
        return join_all(step);
      case Step::Kind::Duplicate:
        return duplicate(step);
    }
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

// All calls at once, each rank in an order of its own, and waited for in another.
void Runner::batch(const Step& step) {
  std::vector<const Call*> calls;
  for (const Call& call : step.calls) {
    const auto set = sets_.find(call.set);
    if (set != sets_.end() && set->second.includes_me()) calls.push_back(&call);
  }
  std::shuffle(calls.begin(), calls.end(), own_);
  std::vector<Running> running;
  for (const Call* call : calls) {
    pause();
    guarded(*call, [&] { running.push_back(start(*call, sets_.at(call->set))); });
  }
  std::shuffle(running.begin(), running.end(), own_);
  for (const Running& one : running) finish(one);
}

void Runner::blocking(const Step& step) {
  const Call& call = step.calls.front();
  const auto set = sets_.find(call.set);
  if (set == sets_.end() || !set->second.includes_me()) return;
  pause();
  guarded(call, [&] { finish(start(call, set->second)); });
}

// All ranks but one submit a name twice. The second time it is still in flight, as that one is
// late.
void Runner::duplicate(const Step& step) {
  const Call& call = step.calls.front();
  const ProcessSet& set = sets_.at(step.set);
  if (!set.includes_me() || set.size() == 1) return;
  const bool late = rank() == call.root;
  Running running;
  if (!late) {
    running = start(call, set);
    try {
      (void)start(call, set).wait();
      fail("a name was in flight twice: " + describe(call));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::DuplicateName) fail(error.what());
    }
  }
  barrier(set);
  if (late) running = start(call, set);
  finish(running);
}

void Runner::join_all(const Step& step) {
  const int own = step.counts[rank()];
  for (int i = 0; i < own; ++i) {
    pause();
    guarded(step.calls[i], [&] { finish(start(step.calls[i], ProcessSet()), true); });
  }
  pause();
  const int last = join();
  const int most = *std::max_element(step.counts.begin(), step.counts.end());
  if (last < 0 || last >= size() || step.counts[last] != most) {
    fail("join() says that rank " + std::to_string(last) + " came last");
  }
}

// Runs a part of a call; only what the call's fault explains may be thrown.
void Runner::guarded(const Call& call, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    const std::string text = error.what();
    const ErrorCode due =
        call.fault == Fault::Undefined ? ErrorCode::InvalidArgument : ErrorCode::Mismatch;
    if (call.fault == Fault::None || error.code() != due ||
        text.find(call.name) == std::string::npos) {
      fail(std::string(to_string(error.code())) + ": " + text + "\n    of " + describe(call));
    }
  }
}

void Runner::finish(const Running& running, bool joining) {
  const Call& call = *running.call;
  guarded(call, [&] {
    const std::vector<at::Tensor> results = running.wait();
    if (call.fault != Fault::None) return fail("nobody noticed: " + describe(call));
    check(running, results, joining);
  });
}

void Runner::check(const Running& running, const std::vector<at::Tensor>& results, bool joining) {
  const Call& call = *running.call;
  const std::vector<at::Tensor> want = expected(call, rank());
  if (results.size() != want.size()) return fail("wrong number of results: " + describe(call));
  for (size_t i = 0; i < want.size(); ++i) {
    if (!agrees(call, results[i], want[i])) {
      return fail(describe(call) + "\n    part " + std::to_string(i) + " is " + shown(results[i]) +
                  "\n    and not " + shown(want[i]));
    }
    const at::Tensor given = call.in_place ? want[i] : input(call, i, rank());
    if (!agrees(call, running.given[i], given)) return fail("input changed: " + describe(call));
  }
  if (running.received && !joining && running.received() != expected_splits(call, rank())) {
    fail("wrong received_splits(): " + describe(call));
  }
}

void Runner::pause() {
  if (own_() % 6 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own_() % 1500));
}

void Runner::fail(const std::string& why) {
  if (!failure_.empty()) return;
  failure_ = "rank " + std::to_string(rank()) + ", seed " + std::to_string(program_.seed) +
             ", step " + std::to_string(at_) + ": " + why + "\n    in " +
             describe(program_.steps[at_]);
}

}  // namespace horon::random_program
