#include "horon/torch_bindings/state/local_sgd.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/torch_bindings/collectives/average_in_groups.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/state/replicas.h"
#include "horon/torch_bindings/tensors/failures.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon {
namespace {

using core::concat;
using torch_detail::Fact;
using torch_detail::PlainMode;

template <class... Values>
[[noreturn]] void refuse(const LocalSgdOptions& options, const Values&... values) {
  throw Error(ErrorCode::InvalidArgument, concat("LocalSgd \"", options.name, "\": ", values...));
}

void check(const LocalSgdOptions& options) {
  if (options.steps < 1) refuse(options, "steps is ", options.steps, "; give 1 or more");
  if (!std::isfinite(options.outer_lr) || options.outer_lr <= 0) {
    refuse(options, "outer_lr is ", options.outer_lr, "; give a finite number above 0");
  }
  if (!(options.outer_momentum >= 0 && options.outer_momentum < 1)) {
    refuse(options, "outer_momentum is ", options.outer_momentum, "; give one from 0 to below 1");
  }
}

NamedTensors tensors_of(const ::torch::nn::Module& module) {
  NamedTensors all;
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad()) all.emplace_back(item.key(), item.value());
  }
  all.append(module.named_buffers());
  return all;
}

bool can_be_averaged(const at::Tensor& tensor) {
  return (tensor.is_floating_point() || tensor.is_complex()) &&
         !torch_detail::is_moved_only(tensor);
}

}  // namespace

LocalSgd::LocalSgd(const ::torch::nn::Module& module, LocalSgdOptions options)
    : LocalSgd(tensors_of(module), std::move(options)) {}

LocalSgd::LocalSgd(const NamedTensors& tensors, LocalSgdOptions options)
    : options_(std::move(options)), member_(options_.process_set.includes_me()) {
  check(options_);
  if (!member_) return;
  joins_ = ops::call_counts().times_forgotten(options_.process_set.id());
  torch_detail::UniqueNames names;
  std::unordered_set<const void*> seen;  // tied ones count once, by their first name
  for (const auto& [name, tensor] : tensors) {
    if (tensor.defined() && !can_be_averaged(tensor)) continue;
    torch_detail::check_writable(torch_detail::real_memory(tensor), name);
    if (names.add({name, tensor}) && seen.insert(tensor.unsafeGetTensorImpl()).second) {
      add(name, tensor);
    }
  }
}

void LocalSgd::add(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.requires_grad()) return buffers_.emplace_back(name, tensor);
  const PlainMode plain;
  Parameter& added = parameters_.emplace_back(Parameter{name, tensor, {}, {}});
  if (has_start()) added.start = tensor.detach().clone();
  if (has_momentum()) added.momentum = at::zeros_like(added.start);
}

bool LocalSgd::has_start() const {
  return options_.outer_lr != 1 || has_momentum() || options_.compression != Compression::None;
}

// Ranks come back from a join() with unlike numbers of steps.
void LocalSgd::begin_anew_after_join() {
  const uint64_t joins = ops::call_counts().times_forgotten(options_.process_set.id());
  if (std::exchange(joins_, joins) != joins) since_ = 0;
}

bool LocalSgd::step() {
  if (!member_) return false;
  begin_anew_after_join();
  if (++since_ < options_.steps) return false;
  average();
  return true;
}

void LocalSgd::require_alike() const {
  std::vector<Fact> facts{
      {"the options",
       concat(options_.steps, " steps, outer_lr ", core::real_text(options_.outer_lr),
              ", outer_momentum ", core::real_text(options_.outer_momentum),
              options_.outer_nesterov ? "" : " (not Nesterov's)", ", compression ",
              to_string(options_.compression))}};
  // The number of averages is compared with an outer step or compression only: a plain average does
  // not depend on earlier ones.
  if (has_start()) {
    facts.push_back(
        {"the number of averages (after join() call broadcast_parameters() and broadcast_state())",
         concat(averages_)});
  }
  size_t place = 0;
  for (const Parameter& each : parameters_) {
    facts.push_back(torch_detail::fact_in_place("parameter", each.name, each.tensor, place++));
  }
  for (const auto& [name, buffer] : buffers_) {
    facts.push_back(torch_detail::fact_in_place("buffer", name, buffer, place++));
  }
  torch_detail::require_agreement(options_.name, facts, "", options_.process_set);
}

// All ranks decide together: the starts are compared once, and again when a rank has loaded
// something, and an outer step with `changes`, which are worked out here, is due where a rank has
// taken a step or its parameters have moved (those of a program that calls average() alone).
// Without such a reason momentum alone would move the parameters.
bool LocalSgd::agree_on_outer_step(std::vector<at::Tensor>& changes) {
  const auto has_moved = [](const at::Tensor& change) { return change.any().item<bool>(); };
  const std::string name = options_.name + ".flags";
  enum : int64_t { kUnseen, kDue, kCount };
  const at::Tensor flags = at::zeros({kCount}, at::kByte);
  auto* const flag = flags.mutable_data_ptr<uint8_t>();
  flag[kUnseen] = !began_alike_;
  try {
    for (const Parameter& each : parameters_) changes.push_back(each.start - each.tensor.detach());
    flag[kDue] = since_ > 0 || std::any_of(changes.begin(), changes.end(), has_moved);
  } catch (...) {  // no memory: the other ranks wait for this one
    torch_detail::refuse_calls({name}, options_.process_set, core::current_error());
  }
  allreduce_(flags, {.name = name, .op = ReduceOp::Max, .process_set = options_.process_set});
  if (flag[kUnseen] != 0) {
    NamedTensors starts;
    for (const Parameter& each : parameters_) starts.emplace_back(each.name, each.start);
    check_replicas_equal(starts, options_.process_set);
  }
  began_alike_ = true;
  return flag[kDue] != 0;
}

void LocalSgd::average() {
  if (!member_) return;
  const PlainMode plain;
  begin_anew_after_join();
  require_alike();
  std::vector<at::Tensor> changes;  // or the parameters themselves
  const bool has_outer_step = has_start() && agree_on_outer_step(changes);
  if (has_start() && !has_outer_step) changes.clear();
  for (const Parameter& each : parameters_) {
    if (!has_start()) changes.push_back(each.tensor.detach());
  }
  std::vector<at::Tensor> buffers;
  for (const auto& [name, buffer] : buffers_) buffers.push_back(buffer.detach());
  using torch_detail::AverageInGroups;
  AverageInGroups of_changes(options_.name + ".parameters", changes, options_.process_set,
                             options_.compression);
  AverageInGroups of_buffers(options_.name + ".buffers", buffers, options_.process_set);
  torch_detail::Failures failures;
  failures.run([&] { of_changes.wait(); });
  failures.run([&] { of_buffers.wait(); });
  if (failures.first()) throw Error(*failures.first());
  for (size_t i = 0; has_outer_step && i < parameters_.size(); ++i) {
    move_on(parameters_[i], changes[i]);
  }
  since_ = 0;
  if (has_outer_step || !has_start()) ++averages_;
}

// As torch::optim::SGD does, with the change in the place of the gradient.
void LocalSgd::move_on(Parameter& parameter, const at::Tensor& change) const {
  at::Tensor step = change;
  if (has_momentum()) {
    parameter.momentum.mul_(options_.outer_momentum).add_(change);
    step = options_.outer_nesterov ? change.add(parameter.momentum, options_.outer_momentum)
                                   : parameter.momentum;
  }
  parameter.start.sub_(step, options_.outer_lr);
  parameter.tensor.copy_(parameter.start);
}

// How many tensors it keeps.
int64_t LocalSgd::kept() const {
  const int64_t of_each = (has_start() ? 1 : 0) + (has_momentum() ? 1 : 0);
  return of_each * static_cast<int64_t>(parameters_.size());
}

// By number: names of a module's parameters are not valid in an archive.
void LocalSgd::save(::torch::serialize::OutputArchive& archive) const {
  archive.write("steps_since_average", c10::IValue(since_));
  archive.write("averages", c10::IValue(averages_));
  archive.write("kept", c10::IValue(kept()));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& each = parameters_[i];
    if (has_start()) archive.write(concat("start", i), each.start, /*is_buffer=*/true);
    if (has_momentum()) archive.write(concat("momentum", i), each.momentum, /*is_buffer=*/true);
  }
}

void LocalSgd::load(::torch::serialize::InputArchive& archive) {
  const PlainMode plain;
  c10::IValue since, averages, kept_there;
  if (!archive.try_read("steps_since_average", since) || !since.isInt() || since.toInt() < 0 ||
      !archive.try_read("averages", averages) || !averages.isInt() || averages.toInt() < 0 ||
      !archive.try_read("kept", kept_there) || !kept_there.isInt()) {
    refuse(options_, "the archive holds no state of a LocalSgd");
  }
  if (member_ && kept_there.toInt() != kept()) {
    refuse(options_, "the archive is from another model or other options: it has ",
           kept_there.toInt(), " tensors, but ", kept(), " are needed");
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> values;  // to where, and what
  const auto read = [&](const char* what, size_t number, const at::Tensor& to) {
    const std::string& name = parameters_[number].name;
    at::Tensor from;
    if (!archive.try_read(concat(what, number), from, /*is_buffer=*/true)) {
      refuse(options_, "the archive has no ", what, " of \"", name, "\"");
    }
    if (from.sizes() != to.sizes() || from.scalar_type() != to.scalar_type()) {
      refuse(options_, "the ", what, " of \"", name, "\" is ",
             torch_detail::type_and_shape(from, name), " in the archive but ",
             torch_detail::type_and_shape(to, name), " here");
    }
    values.emplace_back(to, from);
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (has_start()) read("start", i, parameters_[i].start);
    if (has_momentum()) read("momentum", i, parameters_[i].momentum);
  }
  for (auto& [to, from] : values) to.copy_(from);
  since_ = since.toInt();
  averages_ = averages.toInt();
  began_alike_ = false;
}

}  // namespace horon
