#include "horon/torch_bindings/modules/activation_checkpoint.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <mutex>
#include <unordered_set>

#include <ATen/Context.h>
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon {
namespace {

using core::concat;
using torch_detail::CheckpointedFunction;
namespace graph = ::torch::autograd;
using graph::variable_list;

[[noreturn]] void refuse_checkpoint(const std::string& why) {
  throw Error(ErrorCode::InvalidArgument, concat("checkpoint(): ", why));
}

thread_local int second_runs = 0;

struct SecondRun {
  SecondRun() { ++second_runs; }
  ~SecondRun() { --second_runs; }
  SecondRun(const SecondRun&) = delete;
  SecondRun& operator=(const SecondRun&) = delete;
};

// The random numbers to come, of the CPU and of the devices of some tensors.
class RandomNumbers {
 public:
  static RandomNumbers now(const std::vector<at::Tensor>& tensors) {
    RandomNumbers numbers;
    numbers.add(at::Device(at::kCPU));
    for (const at::Tensor& tensor : tensors) numbers.add(tensor.device());
    return numbers;
  }
  RandomNumbers now() const {
    RandomNumbers numbers;
    for (const Source& source : sources_) numbers.add(source.device);
    return numbers;
  }
  void restore() const {
    for (const Source& source : sources_) {
      at::Generator generator = at::globalContext().defaultGenerator(source.device);
      const std::lock_guard lock(generator.mutex());
      generator.set_state(source.state);
    }
  }

 private:
  struct Source {
    at::Device device;
    at::Tensor state;
  };
  void add(at::Device device) {
    const auto same = [&](const Source& source) { return source.device == device; };
    if (std::any_of(sources_.begin(), sources_.end(), same)) return;
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    sources_.push_back({device, generator.get_state()});
  }
  std::vector<Source> sources_;
};

class RandomScope {
 public:
  explicit RandomScope(const RandomNumbers& numbers) : before_(numbers.now()) { numbers.restore(); }
  ~RandomScope() { before_.restore(); }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  RandomNumbers before_;
};

struct Autocast {
  struct OfDevice {
    bool enabled = false;
    at::ScalarType dtype = at::kFloat;
  };
  static constexpr std::array kDevices{at::kCPU, at::kCUDA};
  std::array<OfDevice, kDevices.size()> devices;
  bool cache = false;

  static Autocast now() {
    Autocast settings;
    for (size_t i = 0; i < kDevices.size(); ++i) {
      settings.devices[i] = {at::autocast::is_autocast_enabled(kDevices[i]),
                             at::autocast::get_autocast_dtype(kDevices[i])};
    }
    settings.cache = at::autocast::is_autocast_cache_enabled();
    return settings;
  }
  void set() const {
    for (size_t i = 0; i < kDevices.size(); ++i) {
      at::autocast::set_autocast_enabled(kDevices[i], devices[i].enabled);
      at::autocast::set_autocast_dtype(kDevices[i], devices[i].dtype);
    }
    at::autocast::set_autocast_cache_enabled(cache);
  }
};

// These settings without the cache. The first run rounds weights without recording it. If the
// second run, or the rest of the model, found such a copy in the cache, no gradient would come
// through it.
class AutocastScope {
 public:
  explicit AutocastScope(Autocast settings) : before_(Autocast::now()) {
    settings.cache = false;
    settings.set();
  }
  ~AutocastScope() { before_.set(); }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  Autocast before_;
};

// Puts back what these tensors held: by restore(), or when an exception passes.
class KeptValues {
 public:
  explicit KeptValues(const std::vector<at::Tensor>& tensors) : tensors_(tensors) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& tensor : tensors_) values_.push_back(tensor.detach().clone());
  }
  ~KeptValues() {
    for (size_t i = 0; i < values_.size(); ++i) {
      try {
        put_back(i);
      } catch (const std::exception&) {  // the exception that passes tells more
      }
    }
  }
  void restore() {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (tensors_[i].sizes() == values_[i].sizes()) continue;
      refuse_checkpoint(concat(
          "the second run resized buffer ", i, " from ", core::shape_text(values_[i].sizes()),
          " to ", core::shape_text(tensors_[i].sizes()), "; the function must not resize buffers"));
    }
    for (size_t i = 0; i < values_.size(); ++i) put_back(i);
    values_.clear();
  }
  KeptValues(const KeptValues&) = delete;
  KeptValues& operator=(const KeptValues&) = delete;

 private:
  // Through a tensor with a version of its own: the value that the rest of the model has saved for
  // its backward is there again, and autograd must not see it as changed.
  void put_back(size_t i) { tensors_[i].variable_data().copy_(values_[i]); }
  std::vector<at::Tensor> tensors_, values_;
};

struct Form {
  explicit Form(const at::Tensor& tensor)
      : shape(tensor.sizes().vec()), dtype(tensor.scalar_type()) {}
  bool operator==(const Form&) const = default;
  std::string text() const { return concat(at::toString(dtype), core::shape_text(shape)); }

  std::vector<int64_t> shape;
  at::ScalarType dtype;
};

struct Segment : ::torch::CustomClassHolder {
  CheckpointedFunction function;
  std::vector<at::Tensor> buffers;
  RandomNumbers random;
  Autocast autocast;
  std::vector<Form> outputs;
};
using SegmentPointer = c10::intrusive_ptr<Segment>;

// A node that was there before the second run belongs to the graph of the program: backward
// through it would add to gradients there, and leave the program a graph without buffers.
void check_history(const variable_list& roots, uint64_t first_number) {
  std::vector<graph::Node*> next;
  for (const at::Tensor& root : roots) next.push_back(root.grad_fn().get());
  std::unordered_set<graph::Node*> seen(next.begin(), next.end());
  while (!next.empty()) {
    graph::Node* const node = next.back();
    next.pop_back();
    if (node == nullptr) continue;  // a leaf is a root
    if (node->sequence_nr() < first_number) {
      refuse_checkpoint(
          concat("the function uses a tensor with an autograd history (", node->name(),
                 ") that is not among its inputs; give it to checkpoint() as an input"));
    }
    for (const graph::Edge& edge : node->next_edges()) {
      if (edge.is_valid() && seen.insert(edge.function.get()).second) {
        next.push_back(edge.function.get());
      }
    }
  }
}

variable_list run_again(const Segment& segment, const variable_list& inputs) {
  const SecondRun counted;
  const RandomScope random(segment.random);
  const AutocastScope autocast(segment.autocast);
  variable_list outputs = segment.function(inputs);
  std::vector<Form> forms;
  for (const at::Tensor& output : outputs) {
    if (!output.defined())
      refuse_checkpoint("an output of the function is undefined in the second run");
    forms.emplace_back(output);
  }
  if (forms == segment.outputs) return outputs;
  const auto text = [](const std::vector<Form>& list) {
    std::string all;
    for (const Form& form : list) all += concat(all.empty() ? "" : ", ", form.text());
    return all;
  };
  refuse_checkpoint(concat("the function returned ", text(segment.outputs),
                           ", but in the second run ", text(forms),
                           "; it must return the same both times"));
}

class Checkpoint : public graph::Function<Checkpoint> {
 public:
  static variable_list forward(graph::AutogradContext* context, at::TensorList given,
                               const at::Tensor& /*anchor*/, const SegmentPointer& segment) {
    const std::vector<at::Tensor> inputs = given.vec();
    std::vector<int64_t> versions;
    for (const at::Tensor& input : inputs) versions.push_back(input._version());
    variable_list outputs;
    {
      const AutocastScope autocast(segment->autocast);
      outputs = segment->function(inputs);
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i]._version() == versions[i]) continue;
      refuse_checkpoint(concat("the function wrote to its input ", i,
                               ", which the second run needs unchanged; let it work on a clone()"));
    }
    for (const at::Tensor& output : outputs) {
      if (!output.defined()) refuse_checkpoint("an output of the function is undefined");
      segment->outputs.emplace_back(output);
    }
    context->save_for_backward(inputs);
    context->set_materialize_grads(false);
    context->saved_data["segment"] = c10::IValue::make_capsule(segment);
    return outputs;
  }

  static variable_list backward(graph::AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      refuse_checkpoint(
          "backward() with create_graph can't go through a checkpointed part; call that part "
          "without checkpoint() where second derivatives are needed");
    }
    if (!graph::Engine::get_default_engine().is_checkpoint_valid()) {
      refuse_checkpoint(
          "autograd::grad() and backward() with a list of inputs can't go through a checkpointed "
          "part, which adds to .grad of all its parameters; use backward() and read .grad, or "
          "call that part without checkpoint()");
    }
    const variable_list saved = context->get_saved_variables();
    const auto held = context->saved_data["segment"].toCapsule();
    const auto& segment = static_cast<const Segment&>(*held);
    variable_list inputs;
    for (const at::Tensor& input : saved) {
      inputs.push_back(input.detach().set_requires_grad(input.requires_grad()));
    }
    backward_again(segment, inputs, gradients);
    variable_list result;
    for (const at::Tensor& input : inputs) result.push_back(input.grad());
    result.resize(inputs.size() + 2);  // the anchor and the segment
    return result;
  }

 private:
  static void backward_again(const Segment& segment, const variable_list& inputs,
                             const variable_list& gradients) {
    const c10::InferenceMode not_inference(false);
    const at::AutoGradMode recording(true);
    // Buffers are put back after the backward, whose graph must not see a buffer that was written
    // to meanwhile.
    KeptValues buffers(segment.buffers);
    const uint64_t first_number = at::sequence_number::peek();
    const variable_list outputs = run_again(segment, inputs);
    variable_list roots, root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      root_gradients.push_back(gradients[i]);
    }
    if (!roots.empty()) {
      check_history(roots, first_number);
      graph::backward(roots, root_gradients);
    }
    buffers.restore();
  }
};

}  // namespace

bool recomputing() { return second_runs > 0; }

std::vector<at::Tensor> torch_detail::run_checkpointed(CheckpointedFunction function,
                                                       const std::vector<at::Tensor>& inputs,
                                                       const ActivationCheckpointOptions& options) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) refuse_checkpoint(concat("input ", i, " is undefined"));
  }
  if (!at::GradMode::is_enabled()) return function(inputs);
  auto segment = c10::make_intrusive<Segment>();
  segment->function = std::move(function);
  segment->buffers = options.buffers;
  segment->random = RandomNumbers::now(inputs);
  segment->autocast = Autocast::now();
  // Results require grad even if no input does: parameters may.
  const at::Tensor anchor = at::empty({0}).requires_grad_(true);
  return Checkpoint::apply(at::TensorList(inputs), anchor, segment);
}

}  // namespace horon
