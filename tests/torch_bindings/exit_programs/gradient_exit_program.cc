// gradient_exit_program MODE: ends the process, in one of many ways, while gradients are being
// reduced. The test looks at the exit code and the time.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "horon/core/base/error.h"
#include "horon/tests/torch_bindings/exit_programs/end_of_mpi.h"
#include "horon/torch_bindings/gradients/gradient_reducer.h"
#include "horon/torch_bindings/session.h"

namespace {

constexpr int kParameters = 20;

struct Model {
  std::vector<at::Tensor> parameters;
  std::optional<horon::GradientReducer> reducer;

  void make() {
    horon::NamedTensors named;
    for (int i = 0; i < kParameters; ++i) {
      parameters.push_back(at::ones({10000}).requires_grad_(true));
      named.emplace_back("p" + std::to_string(i), parameters.back());
    }
    reducer.emplace(
        named, horon::GradientReducerOptions{
                   .bucket_bytes = 1, .first_bucket_bytes = 1, .wait_in = horon::WaitIn::Step});
  }
  void backward() {
    at::Tensor value = at::ones({10000});
    for (const at::Tensor& parameter : parameters) value = value * parameter;
    value.sum().backward();
  }
};

// Lives longer than main(): its destructor runs in the middle of the exit.
Model kept;

// In the middle of backward(), with half of the buckets under way.
template <class Action>
struct Hook : ::torch::autograd::PostAccumulateGradHook {
  explicit Hook(Action a) : action(std::move(a)) {}
  void operator()(const at::Tensor&) override { action(); }
  Action action;
};

template <class Action>
void in_backward(Model& model, Action action) {
  ::torch::autograd::impl::set_post_acc_grad_hooks(
      model.parameters[kParameters / 2], std::make_unique<Hook<Action>>(std::move(action)));
}

bool says_not_initialized(const std::function<void()>& action) {
  try {
    action();
  } catch (const horon::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.code() == horon::ErrorCode::NotInitialized;
  }
  return false;
}

// A rank that reduces with nobody ends its rounds without a collective. After shutdown() each of
// its backward() fails all the same, and its round is over.
int run_alone_after_shutdown() {
  horon::ProcessSet mine;
  for (int rank = 0; rank < horon::size(); ++rank) {
    const horon::ProcessSet set = horon::add_process_set({rank});
    if (rank == horon::rank()) mine = set;
  }
  const at::Tensor w = at::ones({3}).requires_grad_(true);
  horon::GradientReducer reducer({{"w", w}}, {.process_set = mine});
  horon::shutdown();
  for (int pass = 1; pass <= 2; ++pass) {
    if (!says_not_initialized([&] { w.sum().backward(); })) return 1;
    if (!reducer.unsynchronized_parameter().empty()) return 2;
    if (w.grad().sum().item<float>() != static_cast<float>(3 * pass)) return 3;
  }
  return 0;
}

int run(const std::string& mode) {
  horon::init();
  if (mode == "alone_after_shutdown") return run_alone_after_shutdown();
  Model local;
  Model& model = mode.ends_with("_static") ? kept : local;
  model.make();
  model.backward();
  model.reducer->synchronize();
  if (mode.starts_with("exit_in_hook")) in_backward(model, [] { std::exit(5); });
  if (mode.starts_with("throw_in_hook")) {
    in_backward(model, [] { throw std::runtime_error("thrown in a hook"); });
  }
  if (mode == "one_exits_in_hook" && horon::rank() == 0) {
    in_backward(model, [] { std::exit(0); });
  }
  model.backward();
  if (mode.starts_with("return")) return 0;
  if (mode.starts_with("after_shutdown")) horon::shutdown();
  try {
    model.reducer->synchronize();
  } catch (const horon::Error& error) {
    const horon::ErrorCode expected = mode.starts_with("after_shutdown")
                                          ? horon::ErrorCode::NotInitialized
                                          : horon::ErrorCode::RankLeft;
    std::fprintf(stderr, "%s\n", error.what());
    return error.code() == expected ? 0 : 1;
  }
  return 2;
}

}  // namespace

int main(int, char** argv) {
  horon::testing_support::require_end_of_mpi();
  try {
    return run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 4;
  }
}
