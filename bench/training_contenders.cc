#include "horon/bench/training_contenders.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <deque>
#include <functional>
#include <optional>
#include <random>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "horon/bench/models.h"
#include "horon/bench/slow_network_training.h"
#include "horon/core/base/error.h"
#include "horon/ops/session/running_job.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/shared_tensor.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/gradients/fused_step.h"
#include "horon/torch_bindings/session.h"

namespace horon::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Contender {
  std::string name;
  std::function<void()> step;
};

template <class Optimizer, class Step>
void train(const TrainingModel& model, Optimizer& optimizer, const Step& step) {
  optimizer.zero_grad();
  model.loss().backward();
  step();
}

double process_cpu_seconds() {
  timespec time{};
  HORON_CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0, "there is no clock of CPU time");
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Seconds per step on this rank.
struct StepTime {
  double wall = 0;
  double cpu = 0;
};

// Until all that the program has enqueued there is done.
void wait_for(at::Device device) {
  if (device.is_cuda()) at::detail::getCUDAHooks().deviceSynchronize(device.index());
}

// All ranks begin together.
StepTime time_steps(const Contender& contender, int steps, at::Device device, MpiPeer& peer) {
  wait_for(device);
  peer.barrier();
  const auto begin = Clock::now();
  const double cpu_begin = process_cpu_seconds();
  for (int i = 0; i < steps; ++i) contender.step();
  wait_for(device);
  return {std::chrono::duration<double>(Clock::now() - begin).count() / steps,
          (process_cpu_seconds() - cpu_begin) / steps};
}

std::vector<double> reduced(const std::vector<double>& values, ReduceOp op) {
  at::Tensor tensor = at::zeros({static_cast<int64_t>(values.size())}, at::kDouble);
  std::copy(values.begin(), values.end(), tensor.data_ptr<double>());
  allreduce_(tensor, {.name = "bench.values", .op = op});
  return {tensor.data_ptr<double>(), tensor.data_ptr<double>() + values.size()};
}

double reduced(double value, ReduceOp op) { return reduced(std::vector{value}, op).front(); }

// Whether all ranks hold the same parameters, bit by bit.
bool ranks_agree(const TrainingModel& model) {
  for (const auto& [name, tensor] : model.parameters) {
    const at::Tensor mine = tensor.detach();
    const at::Tensor least = allreduce(mine, {.name = "bench.least", .op = ReduceOp::Min});
    const at::Tensor most = allreduce(mine, {.name = "bench.most", .op = ReduceOp::Max});
    if (!least.equal(most) || !least.equal(mine)) return false;
  }
  return true;
}

// Returns the same number on all ranks.
int choose_steps(const TrainingPlan& plan, double step_s) {
  if (plan.steps > 0) return plan.steps;
  const double slowest = reduced(step_s, ReduceOp::Max);
  return std::clamp(static_cast<int>(0.5 / slowest), 3, 200);
}

}  // namespace

namespace {

std::vector<double> quotients(const std::vector<double>& above, const std::vector<double>& below) {
  std::vector<double> all;
  for (size_t i = 0; i < above.size(); ++i) all.push_back(above[i] / below[i]);
  return all;
}

}  // namespace

std::vector<double> TrainingTimes::ratios(const std::string& contender,
                                          const std::string& base) const {
  return quotients(seconds.at(contender), seconds.at(base));
}

std::vector<double> TrainingTimes::cpu_ratios(const std::string& contender,
                                              const std::string& base) const {
  return quotients(cpu_seconds.at(contender), cpu_seconds.at(base));
}

std::vector<double> TrainingTimes::hidden() const {
  std::vector<double> all;
  for (size_t i = 0; i < seconds.at("gradients").size(); ++i) {
    const double apart = seconds.at("floor")[i] + seconds.at("gradients")[i];
    all.push_back((apart - seconds.at("horon")[i]) / seconds.at("gradients")[i]);
  }
  return all;
}

namespace {

// What the buckets of a reducer send, without the model.
class BareAllreduces {
 public:
  // Makes tensors as long as the buckets of the next rounds of `distributed`; call it before the
  // first of these rounds.
  template <class Opt>
  void learn(DistributedOptimizer<Opt>& distributed, at::Device device) {
    distributed.before_bucket([this, device](const BucketView& bucket) {
      const at::IntArrayRef shape = bucket.flat.sizes();
      const at::TensorOptions options = bucket.flat.options();
      // As buckets do, they lie where collectives need no copy.
      tensors_[bucket.index] =
          device.is_cpu() ? shared_zeros(shape, options) : at::zeros(shape, options);
    });
  }
  void reduce() const {
    std::vector<Handle> handles;
    for (const auto& [index, tensor] : tensors_) {
      handles.push_back(allreduce_async_(tensor, {.name = name_of(index)}));
    }
    for (const Handle& handle : handles) (void)handle.wait();
  }

 private:
  static std::string name_of(int64_t index) { return "bench.bucket" + std::to_string(index); }

  std::map<int64_t, at::Tensor> tensors_;  // by the index of the bucket
};

// The blocks of all contenders, in turns.
void time_blocks(const std::vector<Contender>& contenders, const TrainingPlan& plan, MpiPeer& peer,
                 TrainingTimes& times) {
  for (int block = 0; block < plan.blocks; ++block) {
    for (size_t i = 0; i < contenders.size(); ++i) {  // each block begins with another contender
      const Contender& contender = contenders[(i + static_cast<size_t>(block)) % contenders.size()];
      const StepTime time = time_steps(contender, times.steps, plan.device, peer);
      times.seconds[contender.name].push_back(time.wall);
      times.cpu_seconds[contender.name].push_back(time.cpu);
    }
  }
}

// A model of its own, whose optimizer has its state shared out over the ranks, and the gradients
// too if `gradients`.
template <class Opt>
struct ShardedTraining {
  template <class Options>
  ShardedTraining(const std::string& name, const Options& options, at::Device device,
                  bool gradients)
      : ending(gradients ? "sharded_gradients" : "sharded"),
        model(make_model(name, static_cast<uint64_t>(rank()), device)),
        optimizer(Opt(tensors_of(model), options), model.parameters,
                  {.name = "bench." + ending + "." + name,
                   .shard_optimizer_state = true,
                   .shard_gradients = gradients}) {}

  void add_to(std::vector<Contender>& contenders, bool fuses) {
    const auto train_with = [this](FusedStep wish) {
      optimizer.set_fused_step(wish);
      train(model, optimizer, [this] { optimizer.step(); });
    };
    contenders.push_back({"horon_" + ending, [=] { train_with(FusedStep::Never); }});
    if (!fuses) return;
    contenders.push_back({"horon_fused_" + ending, [=] { train_with(FusedStep::WherePossible); }});
  }

  std::string ending;
  TrainingModel model;
  DistributedOptimizer<Opt> optimizer;
};

// A model of its own, whose optimizer is told of its parameters in random order, as if a program
// had registered its modules in another order than it runs them.
template <class Opt>
struct ShuffledTraining {
  template <class Options>
  ShuffledTraining(const std::string& name, const Options& options, at::Device device, bool learns)
      : contender(learns ? "horon_shuffled" : "horon_shuffled_fixed"),
        model(make_model(name, static_cast<uint64_t>(rank()), device)),
        optimizer(Opt(tensors_of(model), options), shuffled(model.parameters),
                  {.name = "bench." + contender + "." + name,
                   .learn_bucket_order = learns,
                   .fused_step = FusedStep::Never}) {}

  using Parameters = decltype(TrainingModel::parameters);
  static Parameters shuffled(Parameters parameters) {
    std::ranges::shuffle(parameters, std::mt19937_64(1));  // the same on all ranks
    return parameters;
  }
  void step() {
    train(model, optimizer, [this] { optimizer.step(); });
  }

  std::string contender;
  TrainingModel model;
  DistributedOptimizer<Opt> optimizer;
};

// The contenders that a plan asks for beside those that there always are.
template <class Opt>
class MoreContenders {
 public:
  template <class Options>
  MoreContenders(const std::string& name, const Options& options, const TrainingPlan& plan) {
    if (plan.shard) {
      sharded_.emplace(name, options, plan.device, false);
      sharded_gradients_.emplace(name, options, plan.device, true);
    }
    if (plan.shuffled) {
      for (const bool learns : {true, false}) {
        shuffled_.emplace_back(name, options, plan.device, learns);
      }
    }
    if (plan.local_steps > 0) local_.emplace(name, options, plan.device, plan.local_steps);
    if (plan.power_sgd > 0) power_sgd_.emplace(name, options, plan.device, plan.power_sgd);
  }
  void add_to(std::vector<Contender>& contenders, bool fuses) {
    if (sharded_) {
      sharded_->add_to(contenders, fuses);
      sharded_gradients_->add_to(contenders, fuses);
    }
    for (ShuffledTraining<Opt>& training : shuffled_) {
      contenders.push_back({training.contender, [&] { training.step(); }});
    }
    if (local_) contenders.push_back({"local_sgd", [this] { local_->step(); }});
    if (power_sgd_) contenders.push_back({"power_sgd", [this] { power_sgd_->step(); }});
  }
  // Call it at the end: it averages the replicas of LocalSgd.
  bool have_equal_ranks() {
    if (local_) local_->local.average();
    for (const ShuffledTraining<Opt>& training : shuffled_) {
      if (!ranks_agree(training.model)) return false;
    }
    return (!sharded_ ||
            (ranks_agree(sharded_->model) && ranks_agree(sharded_gradients_->model))) &&
           (!local_ || ranks_agree(local_->model)) &&
           (!power_sgd_ || ranks_agree(power_sgd_->model));
  }

 private:
  std::optional<ShardedTraining<Opt>> sharded_, sharded_gradients_;
  std::deque<ShuffledTraining<Opt>> shuffled_;
  std::optional<LocalSgdTraining<Opt>> local_;
  std::optional<PowerSgdTraining<Opt>> power_sgd_;
};

template <class Opt, class Options>
TrainingTimes time_optimizer(const std::string& name, const Options& options,
                             const TrainingPlan& plan, MpiPeer& peer) {
  const auto batch_seed = static_cast<uint64_t>(rank());
  const TrainingModel alone = make_model(name, batch_seed, plan.device);
  const TrainingModel shared = make_model(name, batch_seed, plan.device);
  Opt plain(tensors_of(alone), options);
  DistributedOptimizer<Opt> distributed(Opt(tensors_of(shared), options), shared.parameters,
                                        {.name = "bench." + name});
  MoreContenders<Opt> more(name, options, plan);
  torch_detail::FusedUpdate fused(FusedStep::WherePossible);
  const auto train_alone = [&] { train(alone, plain, [&] { plain.step(); }); };
  const auto train_shared = [&](FusedStep wish) {
    distributed.set_fused_step(wish);
    train(shared, distributed, [&] { distributed.step(); });
  };
  BareAllreduces gradients;
  // A rank that is alone has no buckets, but makes some if learn() asks for them.
  const bool reduces = size() > 1 || plan.buckets;
  if (reduces) gradients.learn(distributed, plan.device);
  std::vector<Contender> contenders{
      {"alone", train_alone},
      {"horon", [&] { train_shared(FusedStep::Never); }},
      {"floor",
       [&] {
         train_alone();
         wait_for(plan.device);
         peer.barrier();
       }},
  };
  // This one comes after `horon`, whose steps have shown it the buckets.
  if (reduces) contenders.push_back({"gradients", [&] { gradients.reduce(); }});
  // Autotuning would take a fused step for the same step with better buckets.
  const bool fuses = plan.device.is_cpu() && !ops::runtime().config().autotune;
  if (fuses) {
    contenders.push_back({"horon_fused", [&] { train_shared(FusedStep::WherePossible); }});
    const auto update = [&] { HORON_CHECK(fused.update(plain), "the step could not be fused"); };
    contenders.push_back({"alone_fused", [&, update] { train(alone, plain, update); }});
  }
  more.add_to(contenders, fuses);
  TrainingTimes times;
  times.model = name;
  times.tensors = static_cast<int64_t>(alone.parameters.size());
  for (const at::Tensor& tensor : tensors_of(alone)) times.parameters += tensor.numel();

  for (const Contender& contender : contenders) {
    const double step_s = time_steps(contender, plan.warmup_steps, plan.device, peer).wall;
    if (contender.name == "alone") times.steps = choose_steps(plan, step_s);
    if (contender.name == "horon") distributed.before_bucket(nullptr);
  }
  const double waited_before = distributed.exposed_wait_seconds();
  time_blocks(contenders, plan, peer, times);
  const double waited = distributed.exposed_wait_seconds() - waited_before;
  const int steps = (fuses ? 2 : 1) * plan.blocks * times.steps;
  times.exposed_s = reduced(waited / steps, ReduceOp::Average);
  for (auto* all : {&times.seconds, &times.cpu_seconds}) {
    for (auto& [contender, seconds] : *all) seconds = reduced(seconds, ReduceOp::Average);
  }
  times.ranks_agree = ranks_agree(shared) && more.have_equal_ranks();
  return times;
}

}  // namespace

const std::vector<std::string>& training_optimizers() {
  static const std::vector<std::string> names{"sgd", "adam", "adamw"};
  return names;
}

TrainingTimes time_training(const std::string& name, const TrainingPlan& plan, MpiPeer& peer) {
  namespace optim = torch::optim;
  if (plan.optimizer == "sgd") {
    return time_optimizer<optim::SGD>(name, optim::SGDOptions(0.001).momentum(0.9), plan, peer);
  }
  if (plan.optimizer == "adam") {
    return time_optimizer<optim::Adam>(name, optim::AdamOptions(0.0001), plan, peer);
  }
  if (plan.optimizer == "adamw") {
    return time_optimizer<optim::AdamW>(name, optim::AdamWOptions(0.0001), plan, peer);
  }
  throw Error(ErrorCode::InvalidArgument, "there is no optimizer \"" + plan.optimizer + "\"");
}

}  // namespace horon::bench
