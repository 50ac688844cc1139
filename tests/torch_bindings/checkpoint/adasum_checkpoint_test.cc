// Checkpoints of an optimizer whose state differs between ranks.
#include <filesystem>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>
#include <torch/optim/sgd.h>

#include "horon/ops/session/session.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/gradients/adasum_optimizer.h"
#include "horon/torch_bindings/lr/lr_scheduler.h"
#include "horon/torch_bindings/state/broadcast_state.h"
#include "horon/torch_bindings/state/local_sgd.h"

namespace horon::adasum_checkpoint_test {
namespace {

namespace fs = std::filesystem;
namespace optim = ::torch::optim;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Saves, makes steps, loads, and makes the first of them again.
template <class Step>
void expect_the_same_step_again(Checkpoints& checkpoints, int64_t number, const at::Tensor& w,
                                const Step& step) {
  checkpoints.save(number);
  step();
  const at::Tensor want = w.detach().clone();
  step();
  ASSERT_TRUE(checkpoints.load_latest());
  step();
  EXPECT_TRUE(at::equal(w.detach(), want)) << w << want;
}

// Each rank's momentum is that of its own gradients.
TEST(AdasumCheckpoint, HoldsTheStateOfEachRank) {
  const std::string name = "horon_adasum_checkpoint_" + std::to_string(getpid());
  const std::string folder = broadcast_bytes((fs::temp_directory_path() / name).string());
  const at::Tensor w = at::ones({2}).requires_grad_(true);
  AdasumOptimizer optimizer(optim::SGD({w}, optim::SGDOptions(0.1).momentum(0.9)));
  const auto step = [&] {
    optimizer.zero_grad();
    (w * (rank() + 1)).sum().backward();
    optimizer.step();
  };
  {
    Checkpoints checkpoints(folder);
    EXPECT_THAT(error_of([&] { checkpoints.add("optimizer", optimizer); }),
                AllOf(StartsWith("invalid argument"), HasSubstr("add_of_rank()")));
    checkpoints.add("w", NamedTensors{{"w", w}}).add_of_rank("optimizer", optimizer);
    checkpoints.save(0);
    step();
    ASSERT_TRUE(checkpoints.load_latest());
    EXPECT_TRUE(optimizer.state().empty());
    step();
    expect_the_same_step_again(checkpoints, 1, w, step);
  }
  barrier();
  if (rank() == 0) fs::remove_all(folder);
}

// The momentum of an optimizer beside a LocalSgd is each rank's own, too.
TEST(LocalSgdCheckpoint, HoldsTheStateOfEachRank) {
  const std::string name = "horon_local_sgd_checkpoint_" + std::to_string(getpid());
  const std::string folder = broadcast_bytes((fs::temp_directory_path() / name).string());
  const at::Tensor w = at::ones({2}).requires_grad_(true);
  optim::SGD optimizer({w}, optim::SGDOptions(0.1).momentum(0.9));
  LocalSgd local({{"w", w}}, {.steps = 2});
  const auto step = [&] {
    optimizer.zero_grad();
    (w * (rank() + 1)).sum().backward();
    optimizer.step();
    local.step();
  };
  {
    Checkpoints checkpoints(folder);
    checkpoints.add("w", NamedTensors{{"w", w}}).add("optimizer", optimizer);
    checkpoints.save(0);
    step();
    step();
    EXPECT_THAT(error_of([&] { checkpoints.save(2); }),
                AllOf(StartsWith("invalid argument"), HasSubstr("the state of \"optimizer\""),
                      HasSubstr(size() == 2 ? "on rank 1 " : "on ranks 1 and 2 "),
                      HasSubstr("add_of_rank()")));
    broadcast_optimizer_state(optimizer);
    checkpoints.save(2);
    if (rank() != 0) optimizer.state().clear();  // as of ranks that make no steps
    checkpoints.save(3);
    ASSERT_TRUE(checkpoints.load_latest());
  }
  {
    Checkpoints checkpoints(folder);
    checkpoints.add("w", NamedTensors{{"w", w}}).add_of_rank("optimizer", optimizer);
    step();
    step();
    expect_the_same_step_again(checkpoints, 5, w, step);
  }
  barrier();
  if (rank() == 0) fs::remove_all(folder);
}

TEST(AdasumCheckpoint, AScheduleHasTheLastWordOnItsLearningRate) {
  const std::string name = "horon_adasum_schedule_" + std::to_string(getpid());
  const std::string folder = broadcast_bytes((fs::temp_directory_path() / name).string());
  const at::Tensor w = at::ones({2}).requires_grad_(true);
  AdasumOptimizer optimizer(optim::SGD({w}, optim::SGDOptions(1)));
  {
    LrScheduler scheduler(optimizer, [](double position) { return 1 / (1 + position); });
    scheduler.set_steps(3);
    Checkpoints checkpoints(folder, {.in_background = false});
    checkpoints.add("schedule", scheduler).add_of_rank("optimizer", optimizer).save(3);
  }
  LrScheduler another(optimizer, [](double position) { return 0.5 + position; });
  Checkpoints checkpoints(folder);
  checkpoints.add("schedule", another).add_of_rank("optimizer", optimizer);
  ASSERT_TRUE(checkpoints.load_latest());
  EXPECT_EQ(optimizer.param_groups().front().options().get_lr(), 3.5);
  barrier();
  if (rank() == 0) fs::remove_all(folder);
}

}  // namespace
}  // namespace horon::adasum_checkpoint_test
