#include "horon/torch_bindings/gradients/hooks.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "horon/core/base/error.h"
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

class BeforeHook : public autograd::FunctionPreHook {
 public:
  explicit BeforeHook(std::shared_ptr<HookLink> link) : link_(std::move(link)) {}

  autograd::variable_list operator()(const autograd::variable_list& grads) override {
    const Running running(*link_);
    if (GradientListener* listener = link_->listener) listener->before_accumulate(link_->index);
    return grads;
  }

  const HookLink* link() const { return link_.get(); }

 private:
  std::shared_ptr<HookLink> link_;
};

class AfterHook : public autograd::PostAccumulateGradHook {
 public:
  AfterHook(std::shared_ptr<HookLink> link, std::unique_ptr<PostAccumulateGradHook> previous)
      : link_(std::move(link)), previous_(std::move(previous)) {}

  void operator()(const autograd::Variable& parameter) override {
    const Running running(*link_);
    if (previous_ != nullptr) (*previous_)(parameter);
    if (GradientListener* listener = link_->listener) listener->after_accumulate(link_->index);
  }

  const HookLink* link() const { return link_.get(); }
  std::unique_ptr<PostAccumulateGradHook> take_previous() { return std::move(previous_); }

 private:
  std::shared_ptr<HookLink> link_;
  std::unique_ptr<PostAccumulateGradHook> previous_;
};

bool is_heard(const at::Tensor& parameter) {
  for (const auto& hook : autograd::impl::hooks(parameter)) {
    const auto* ours = dynamic_cast<const BeforeHook*>(hook.get());
    if (ours != nullptr && ours->link()->listener != nullptr) return true;
  }
  return false;
}

// The first Tensor::register_hook() on a tensor clears the list of its pre-hooks. So the list that
// it would make is made here, before ours is added; hooks that are there already are kept.
void prepare_pre_hooks(const at::Tensor& parameter) {
  autograd::AutogradMeta* meta = autograd::impl::materialize_autograd_meta(parameter);
  if (meta->cpp_hooks_list_ != nullptr) return;
  std::vector<std::unique_ptr<autograd::FunctionPreHook>> kept =
      std::move(autograd::impl::hooks(parameter));
  autograd::impl::create_cpp_hook(parameter);
  // Not impl::add_hook(), which takes a single one.
  for (auto& hook : kept) autograd::impl::hooks(parameter).push_back(std::move(hook));
}

void remove_hooks(const at::Tensor& parameter, const HookLink* link) {
  auto& before = autograd::impl::hooks(parameter);
  std::erase_if(before, [&](const std::unique_ptr<autograd::FunctionPreHook>& hook) {
    const auto* ours = dynamic_cast<const BeforeHook*>(hook.get());
    return ours != nullptr && ours->link() == link;
  });
  std::unique_ptr<autograd::PostAccumulateGradHook>& after =
      autograd::impl::post_acc_grad_hooks(parameter);
  auto* ours = dynamic_cast<AfterHook*>(after.get());
  if (ours == nullptr || ours->link() != link) return;
  std::unique_ptr<autograd::PostAccumulateGradHook> previous = ours->take_previous();
  after = std::move(previous);
}

}  // namespace

HookedParameter::HookedParameter(const at::Tensor& parameter, const std::string& name,
                                 GradientListener* listener, size_t index)
    : parameter_(parameter) {
  prepare_pre_hooks(parameter);
  if (is_heard(parameter)) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("parameter \"", name,
                             "\" belongs to another distributed optimizer or gradient reducer"));
  }
  link_ = std::make_shared<HookLink>();
  link_->listener = listener;
  link_->index = index;
  autograd::impl::hooks(parameter).push_back(std::make_unique<BeforeHook>(link_));
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
