// Runs a random program with the real library, in step with the other ranks, against the model.
#pragma once

#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "horon/ops/session/process_set.h"
#include "horon/tests/torch_bindings/collectives/random_program/program.h"

namespace horon::random_program {

// A call under way.
struct Running {
  const Call* call = nullptr;
  std::vector<at::Tensor> given;  // the tensors that were handed over
  std::function<std::vector<at::Tensor>()> wait;
  std::function<std::vector<int64_t>()> received;  // null: the call says nothing of that
};

// Submits a call as it is on this rank, its fault included.
Running start(const Call& call, const ProcessSet& set);

class Runner {
 public:
  // `enabled`: steps that are left out do not run on any rank.
  Runner(const Program& program, const std::vector<bool>& enabled);

  // The first failure of any rank, the same text on all; empty if all went well.
  std::string run();

 private:
  void step(const Step& step);
  void batch(const Step& step);
  void blocking(const Step& step);
  void duplicate(const Step& step);
  void join_all(const Step& step);
  void finish(const Running& running, bool joining = false);
  void check(const Running& running, const std::vector<at::Tensor>& results, bool joining);
  void pause();
  void fail(const std::string& why);
  void guarded(const Call& call, const std::function<void()>& work);

  const Program& program_;
  const std::vector<bool>& enabled_;
  std::map<int, ProcessSet> sets_;
  std::mt19937 own_;  // this rank's order and delays
  size_t at_ = 0;
  std::string failure_;
};

}  // namespace horon::random_program
