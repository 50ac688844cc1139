#include "horon/torch_bindings/gradients/fused_step.h"

#include <cstdint>
#include <memory>
#include <string_view>
#include <typeinfo>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "horon/torch_bindings/gradients/fma_instruction.h"
#include "horon/torch_bindings/tensors/memory_ranges.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"
#include "horon/torch_bindings/tensors/wrapped_optimizer.h"

namespace horon::torch_detail {
namespace {

namespace optim = ::torch::optim;

constexpr int64_t kElementsPerThread = 32'768;  // as in LibTorch's own loops

template <class State>
State* state_of(optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto entry = optimizer.state().find(parameter.unsafeGetTensorImpl());
  return entry == optimizer.state().end() ? nullptr : static_cast<State*>(entry->second.get());
}

template <class State>
State& make_state(optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto state = std::make_unique<State>();
  State& result = *state;
  optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  return result;
}

// Can the state of a parameter be laid out as the parameter is?
bool fits(const at::Tensor& state, const at::Tensor& parameter) {
  return state.defined() && state.layout() == at::kStrided &&
         state.device() == parameter.device() && state.scalar_type() == parameter.scalar_type() &&
         state.sizes() == parameter.sizes();
}

// State that was loaded may lie in memory otherwise than the parameter, and on some ranks only:
// after a broadcast on the root alone. It is laid out anew, once, so that all ranks can fuse.
const at::Tensor& laid_out(at::Tensor& state, const at::Tensor& parameter) {
  if (!lies_as(state, parameter)) state = laid_out_as(parameter, state);
  return state;
}

std::string_view refusal_of_gradient(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (!(parameter.is_cpu() || parameter.is_cuda()) || parameter.layout() != at::kStrided) {
    return "it is neither in host memory nor on a GPU";
  }
  if (parameter.scalar_type() != at::kFloat && parameter.scalar_type() != at::kDouble) {
    return "it is neither float32 nor float64";
  }
  if (!parameter.is_non_overlapping_and_dense()) return "its memory has gaps or overlaps";
  if (gradient.layout() != at::kStrided) return "its gradient is sparse";
  if (!lies_as(gradient, parameter)) return "its gradient has another dtype or layout";
  return {};
}

// `refuses(parameter, group)`: why the state does not fit, or nothing.
template <class Refuses>
FusedRefusal look_at_parameters(const optim::Optimizer& optimizer, const Refuses& refuses) {
  const auto& groups = optimizer.param_groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    const std::vector<at::Tensor>& parameters = groups[group].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& gradient = parameters[i].grad();
      if (!gradient.defined()) continue;
      std::string_view why = refusal_of_gradient(parameters[i], gradient);
      if (why.empty()) why = refuses(parameters[i], groups[group].options());
      if (!why.empty()) return {std::string(why), std::pair{group, i}};
    }
  }
  return {};
}

constexpr std::string_view kOnGpu = "on a GPU only Adam and AdamW have a fused step";
constexpr std::string_view kOtherState = "the optimizer's state for it has another dtype or shape";

FusedRefusal refusal_of(optim::SGD& optimizer) {
  if (bit_equal_sgd_kernel() == nullptr) return {"no fused step of SGD is bit-equal here"};
  return look_at_parameters(optimizer, [&](const at::Tensor& parameter, const auto& options) {
    if (!parameter.is_cpu()) return kOnGpu;
    const auto* state = state_of<optim::SGDParamState>(optimizer, parameter);
    const bool used = static_cast<const optim::SGDOptions&>(options).momentum() != 0;
    const bool known = !used || state == nullptr || fits(state->momentum_buffer(), parameter);
    return known ? std::string_view{} : kOtherState;
  });
}

template <class State, class Options>
FusedRefusal refusal_of_adam(optim::Optimizer& optimizer) {
  return look_at_parameters(optimizer, [&](const at::Tensor& parameter, const auto& options) {
    const State* state = state_of<State>(optimizer, parameter);
    const bool has_max = static_cast<const Options&>(options).amsgrad();
    const bool known = state == nullptr ||
                       (fits(state->exp_avg(), parameter) && fits(state->exp_avg_sq(), parameter) &&
                        (!has_max || fits(state->max_exp_avg_sq(), parameter)));
    return known ? std::string_view{} : kOtherState;
  });
}

FusedRefusal refusal_of(optim::Adam& optimizer) {
  return refusal_of_adam<optim::AdamParamState, optim::AdamOptions>(optimizer);
}
FusedRefusal refusal_of(optim::AdamW& optimizer) {
  return refusal_of_adam<optim::AdamWParamState, optim::AdamWOptions>(optimizer);
}
FusedRefusal refusal_of(optim::Adagrad& optimizer) {
  return look_at_parameters(optimizer, [&](const at::Tensor& parameter, const auto& /*options*/) {
    if (!parameter.is_cpu()) return kOnGpu;
    const auto* state = state_of<optim::AdagradParamState>(optimizer, parameter);
    const bool known = state != nullptr && fits(state->sum(), parameter);
    return known ? std::string_view{} : kOtherState;
  });
}

template <class T>
void run_sgd(SgdLoop<T> loop, const at::Tensor& parameter, const at::Tensor& buffer,
             const SgdTerms& terms, bool first) {
  auto* values = static_cast<T*>(parameter.mutable_data_ptr());
  auto* gradient = static_cast<T*>(parameter.grad().mutable_data_ptr());
  T* kept = buffer.defined() ? static_cast<T*>(buffer.mutable_data_ptr()) : nullptr;
  for_each_range(parameter, kElementsPerThread, [&](int64_t begin, int64_t end) {
    T* from = kept == nullptr ? nullptr : kept + begin;
    loop(values + begin, gradient + begin, from, end - begin, terms, first);
  });
}

void step_sgd(optim::Optimizer& optimizer, const SgdKernel& kernel, double gradient_factor) {
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const optim::SGDOptions&>(group.options());
    const SgdTerms terms{options.lr(),           options.momentum(), options.dampening(),
                         options.weight_decay(), options.nesterov(), gradient_factor};
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      at::Tensor buffer;
      bool first = false;
      if (terms.momentum != 0) {
        auto* state = state_of<optim::SGDParamState>(optimizer, parameter);
        first = state == nullptr;
        if (first) {
          state = &make_state<optim::SGDParamState>(optimizer, parameter);
          state->momentum_buffer(at::empty_like(parameter.grad().detach()));
        }
        buffer = laid_out(state->momentum_buffer(), parameter);
      }
      if (parameter.scalar_type() == at::kFloat) {
        run_sgd(kernel.floats, parameter, buffer, terms, first);
      } else {
        run_sgd(kernel.doubles, parameter, buffer, terms, first);
      }
    }
  }
}

void step(optim::SGD& optimizer, double gradient_factor) {
  step_sgd(optimizer, *bit_equal_sgd_kernel(), gradient_factor);
}

// Parameters of one group, one device, one dtype and one step count, as LibTorch's fused kernels
// take them. Numbers for a kernel are on its device.
struct Batch {
  int64_t step = 0;
  at::ScalarType dtype = at::kFloat;
  std::vector<at::Tensor> parameters = {}, gradients = {}, first = {}, second = {}, largest = {};

  at::Tensor number(double value) const {
    const auto options = at::TensorOptions().dtype(at::kFloat).device(parameters.front().device());
    return at::scalar_tensor(value, options);
  }
  std::vector<at::Tensor> steps() const {
    return std::vector<at::Tensor>(parameters.size(), number(static_cast<double>(step)));
  }
  // What the kernels divide gradients by: a float32, so that those of float64 are multiplied here.
  std::optional<at::Tensor> grad_scale(double gradient_factor) const {
    if (gradient_factor == 1) return std::nullopt;
    if (dtype == at::kFloat) return number(1 / gradient_factor);
    for (const at::Tensor& gradient : gradients) gradient.mul_(gradient_factor);
    return std::nullopt;
  }
};

// In the order in which they are to be run: a parameter that is listed twice stands in two batches.
class Batches {
 public:
  Batch& add(const at::Tensor& parameter, int64_t step) {
    if (all_.empty() || all_.back().step != step || all_.back().dtype != parameter.scalar_type() ||
        all_.back().parameters.front().device() != parameter.device()) {
      all_.push_back({.step = step, .dtype = parameter.scalar_type()});
    }
    Batch& batch = all_.back();
    batch.parameters.push_back(parameter);
    batch.gradients.push_back(parameter.grad());
    // These optimizers write to the parameter itself, SGD to parameter.data().
    mark_written(parameter);
    return batch;
  }
  const std::vector<Batch>& all() const { return all_; }

 private:
  std::vector<Batch> all_;
};

template <class State, class Options, class Kernel>
void step_adam(optim::Optimizer& optimizer, double gradient_factor, const Kernel& kernel) {
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    Batches batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      State* state = state_of<State>(optimizer, parameter);
      if (state == nullptr) {
        state = &make_state<State>(optimizer, parameter);
        const auto zeros = [&] { return at::zeros_like(parameter.detach()); };
        state->exp_avg(zeros());
        state->exp_avg_sq(zeros());
        if (options.amsgrad()) state->max_exp_avg_sq(zeros());
      }
      state->step(state->step() + 1);
      Batch& batch = batches.add(parameter, state->step());
      batch.first.push_back(laid_out(state->exp_avg(), parameter));
      batch.second.push_back(laid_out(state->exp_avg_sq(), parameter));
      if (options.amsgrad()) batch.largest.push_back(laid_out(state->max_exp_avg_sq(), parameter));
    }
    const auto [beta1, beta2] = options.betas();
    for (const Batch& batch : batches.all()) {
      kernel(batch.parameters, batch.gradients, batch.first, batch.second, batch.largest,
             batch.steps(), options.lr(), beta1, beta2, options.weight_decay(), options.eps(),
             options.amsgrad(), /*maximize=*/false, batch.grad_scale(gradient_factor),
             /*found_inf=*/std::nullopt);
    }
  }
}

void step(optim::Adam& optimizer, double gradient_factor) {
  step_adam<optim::AdamParamState, optim::AdamOptions>(
      optimizer, gradient_factor, [](auto&&... arguments) { at::_fused_adam_(arguments...); });
}
void step(optim::AdamW& optimizer, double gradient_factor) {
  step_adam<optim::AdamWParamState, optim::AdamWOptions>(
      optimizer, gradient_factor, [](auto&&... arguments) { at::_fused_adamw_(arguments...); });
}
void step(optim::Adagrad& optimizer, double gradient_factor) {
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const optim::AdagradOptions&>(group.options());
    Batches batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = *state_of<optim::AdagradParamState>(optimizer, parameter);
      state.step(state.step() + 1);
      const at::Tensor& sum = laid_out(state.sum(), parameter);
      batches.add(parameter, state.step()).first.push_back(sum);
    }
    for (const Batch& batch : batches.all()) {
      at::_fused_adagrad_(batch.parameters, batch.gradients, batch.first, batch.steps(),
                          options.lr(), options.lr_decay(), options.weight_decay(), options.eps(),
                          /*maximize=*/false, batch.grad_scale(gradient_factor));
    }
  }
}

// Calls `work` with the optimizer as its own type. False: it is none of these.
template <class Work>
bool with_known(optim::Optimizer& optimizer, const Work& work) {
  const std::type_info& type = unwrapped_type(optimizer);
  if (type == typeid(optim::SGD)) return work(static_cast<optim::SGD&>(optimizer)), true;
  if (type == typeid(optim::Adam)) return work(static_cast<optim::Adam&>(optimizer)), true;
  if (type == typeid(optim::AdamW)) return work(static_cast<optim::AdamW&>(optimizer)), true;
  if (type == typeid(optim::Adagrad)) return work(static_cast<optim::Adagrad&>(optimizer)), true;
  return false;
}

// Two steps of the optimizer and of the kernel from the same numbers, with every option that adds a
// rounding.
bool gives_optimizers_bits(const SgdKernel& kernel, at::ScalarType dtype, bool nesterov) {
  constexpr int64_t kElements = 203;  // whole vectors of any width, and a rest
  const auto numbers = [dtype](uint32_t seed) {
    at::Tensor values = at::empty({kElements}, at::kDouble);
    for (int64_t i = 0; i < kElements; ++i) {
      seed = seed * 1'664'525 + 1'013'904'223;
      values.mutable_data_ptr<double>()[i] = static_cast<double>(seed) / 4'294'967'296.0 - 0.5;
    }
    return values.to(dtype);
  };
  const auto options = optim::SGDOptions(0.1)
                           .momentum(0.9)
                           .dampening(nesterov ? 0 : 0.3)
                           .weight_decay(0.01)
                           .nesterov(nesterov);
  std::vector<at::Tensor> expected{numbers(1)};
  std::vector<at::Tensor> found{numbers(1)};
  optim::SGD stock(expected, options);
  optim::SGD fused(found, options);
  for (const uint32_t step : {2, 3, 4}) {
    expected[0].mutable_grad() = numbers(step);
    found[0].mutable_grad() = numbers(step);
    stock.step();
    step_sgd(fused, kernel, 1);
  }
  return expected[0].equal(found[0]);
}

bool gives_optimizers_bits(const SgdKernel& kernel) {
  bool equal = true;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const bool nesterov : {false, true}) {
      equal = equal && gives_optimizers_bits(kernel, dtype, nesterov);
    }
  }
  return equal;
}

const SgdKernel* find_bit_equal_sgd_kernel() {
  const PlainMode plain;
  // On other machines no function of that file may be called: the compiler may have used AVX2
  // anywhere in it.
  if (has_fma_instruction()) {
    static const SgdKernel with = sgd_kernel_fma();
    if (gives_optimizers_bits(with)) return &with;
  }
  static const SgdKernel without = sgd_kernel_plain();
  return gives_optimizers_bits(without) ? &without : nullptr;
}

}  // namespace

const SgdKernel* bit_equal_sgd_kernel() {
  static const SgdKernel* const kernel = find_bit_equal_sgd_kernel();
  return kernel;
}

bool FusedUpdate::knows(const optim::Optimizer& optimizer) {
  const std::type_info& type = unwrapped_type(optimizer);
  refusal_ = {};
  rounded_otherwise_ = false;
  if (wish_ == FusedStep::Never) {
    refusal_.why = "fused_step is Never";
  } else if (type == typeid(optim::SGD)) {
    return true;
  } else if (type != typeid(optim::Adam) && type != typeid(optim::AdamW) &&
             type != typeid(optim::Adagrad)) {
    refusal_.why = "only SGD, Adam, AdamW and Adagrad have a fused step";
  } else if (wish_ == FusedStep::WhereBitEqual) {
    refusal_.why = "its result would differ in the last bits (WherePossible allows that)";
  }
  return refusal_.why.empty();
}

bool FusedUpdate::update(optim::Optimizer& optimizer, double gradient_factor) {
  if (!knows(optimizer)) return false;
  const PlainMode plain;
  // Versions of parameters go up only as in the optimizer's own step.
  const at::AutoDispatchBelowADInplaceOrView below;
  with_known(optimizer, [this](auto& known) { refusal_ = refusal_of(known); });
  if (!refusal_.why.empty()) return false;
  with_known(optimizer, [gradient_factor](auto& known) { step(known, gradient_factor); });
  rounded_otherwise_ = unwrapped_type(optimizer) != typeid(optim::SGD);
  return true;
}

}  // namespace horon::torch_detail
