#include "horon/torch_bindings/gradients/hooks.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "horon/core/base/error.h"
#include "horon/core/base/forked_child.h"
#include "horon/core/base/text.h"

namespace horon::torch_detail {

namespace autograd = ::torch::autograd;

struct HookLink {
  std::atomic<GradientListener*> listener{nullptr};  // null: cut
  std::atomic<int> running{0};
  size_t index = 0;
};

namespace {

// A hook may not be destroyed while it runs; this tells ~HookedParameter.
class Running {
 public:
  explicit Running(HookLink& link) : link_(link) { ++link_.running; }
  ~Running() { --link_.running; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  HookLink& link_;
};

// The hook that LibTorch puts on a tensor for all functions of Tensor::register_hook(), and the
// list of them.
struct ProgramHooks {
  std::unique_ptr<autograd::FunctionPreHook> hook;
  std::shared_ptr<autograd::hooks_list> functions;
};

// Each hook returns a list of its own, so the program's hook is called from here, and only if it
// has functions: without them a gradient costs one allocation.
class BeforeHook : public autograd::FunctionPreHook {
 public:
  BeforeHook(std::shared_ptr<HookLink> link, ProgramHooks program)
      : link_(std::move(link)), program_(std::move(program)) {}

  autograd::variable_list operator()(const autograd::variable_list& grads) override {
    const Running running(*link_);
    if (program_.hook == nullptr || program_.functions->empty()) {
      tell_listener();
      return grads;
    }
    autograd::variable_list changed = (*program_.hook)(grads);
    tell_listener();
    return changed;
  }

  const HookLink* link() const { return link_.get(); }
  std::unique_ptr<autograd::FunctionPreHook> take_program_hook() {
    return std::move(program_.hook);
  }

 private:
  void tell_listener() const {
    GradientListener* const listener = link_->listener;
    if (listener == nullptr) return;
    core::refuse_forked_child();
    listener->before_accumulate(link_->index);
  }

  std::shared_ptr<HookLink> link_;
  ProgramHooks program_;  // null where the tensor's list has the hook itself
};

class AfterHook : public autograd::PostAccumulateGradHook {
 public:
  AfterHook(std::shared_ptr<HookLink> link, std::unique_ptr<PostAccumulateGradHook> previous)
      : link_(std::move(link)), previous_(std::move(previous)) {}

  void operator()(const autograd::Variable& parameter) override {
    const Running running(*link_);
    if (previous_ != nullptr) (*previous_)(parameter);
    GradientListener* const listener = link_->listener;
    if (listener == nullptr) return;
    core::refuse_forked_child();
    listener->after_accumulate(link_->index);
  }

  const HookLink* link() const { return link_.get(); }
  std::unique_ptr<PostAccumulateGradHook> take_previous() { return std::move(previous_); }

 private:
  std::shared_ptr<HookLink> link_;
  std::unique_ptr<PostAccumulateGradHook> previous_;
};

bool is_heard(const at::Tensor& parameter) {
  const auto* after =
      dynamic_cast<const AfterHook*>(autograd::impl::post_acc_grad_hooks(parameter).get());
  if (after != nullptr && after->link()->listener != nullptr) return true;
  for (const auto& hook : autograd::impl::hooks(parameter)) {
    const auto* ours = dynamic_cast<const BeforeHook*>(hook.get());
    if (ours != nullptr && ours->link()->listener != nullptr) return true;
  }
  return false;
}

// The first Tensor::register_hook() on a tensor clears the list of its pre-hooks. So the list that
// it would make is made here, before ours is added; hooks that are there already are kept. If there
// are none, ours calls the program's.
ProgramHooks prepare_pre_hooks(const at::Tensor& parameter) {
  autograd::AutogradMeta* meta = autograd::impl::materialize_autograd_meta(parameter);
  if (meta->cpp_hooks_list_ != nullptr) return {};
  auto& hooks = autograd::impl::hooks(parameter);
  std::vector<std::unique_ptr<autograd::FunctionPreHook>> kept = std::move(hooks);
  autograd::impl::create_cpp_hook(parameter);
  if (kept.empty() && hooks.size() == 1) {
    ProgramHooks program{std::move(hooks.front()), meta->cpp_hooks_list_};
    hooks.clear();
    return program;
  }
  // Not impl::add_hook(), which takes a single one.
  for (auto& hook : kept) hooks.push_back(std::move(hook));
  return {};
}

void remove_hooks(const at::Tensor& parameter, const HookLink* link) {
  auto& before = autograd::impl::hooks(parameter);
  for (auto& hook : before) {
    auto* ours = dynamic_cast<BeforeHook*>(hook.get());
    if (ours == nullptr || ours->link() != link) continue;
    // The program's hook takes the place of ours.
    std::unique_ptr<autograd::FunctionPreHook> program = ours->take_program_hook();
    hook = std::move(program);
  }
  std::erase(before, nullptr);
  std::unique_ptr<autograd::PostAccumulateGradHook>& after =
      autograd::impl::post_acc_grad_hooks(parameter);
  auto* ours = dynamic_cast<AfterHook*>(after.get());
  if (ours == nullptr || ours->link() != link) return;
  std::unique_ptr<autograd::PostAccumulateGradHook> previous = ours->take_previous();
  after = std::move(previous);
}

}  // namespace

HookedParameter::HookedParameter(const at::Tensor& parameter, const std::string& name,
                                 GradientListener* listener, size_t index, Hooks hooks)
    : parameter_(parameter) {
  autograd::impl::materialize_autograd_meta(parameter);
  if (is_heard(parameter)) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("parameter \"", name,
                             "\" belongs to another distributed optimizer or gradient reducer; ",
                             "destroy that one first (in Python: del optimizer); give each ",
                             "parameter to one of them only"));
  }
  link_ = std::make_shared<HookLink>();
  link_->listener = listener;
  link_->index = index;
  if (hooks == Hooks::BeforeAndAfter) {
    ProgramHooks program = prepare_pre_hooks(parameter);
    autograd::impl::hooks(parameter).push_back(
        std::make_unique<BeforeHook>(link_, std::move(program)));
  }
  autograd::impl::set_post_acc_grad_hooks(
      parameter, std::make_unique<AfterHook>(
                     link_, std::move(autograd::impl::post_acc_grad_hooks(parameter))));
}

HookedParameter::~HookedParameter() {
  if (link_ == nullptr) return;  // moved from
  link_->listener = nullptr;
  // A hook that runs now stays where it is, and does nothing from now on.
  if (link_->running == 0) remove_hooks(parameter_, link_.get());
}

}  // namespace horon::torch_detail
