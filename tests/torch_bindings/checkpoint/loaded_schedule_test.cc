// A schedule that goes on from a checkpoint has the last word on the learning rate.
#include <filesystem>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>
#include <torch/optim/sgd.h>

#include "horon/ops/session/session.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/lr/lr_scheduler.h"

namespace horon::loaded_schedule_test {
namespace {

namespace fs = std::filesystem;
namespace optim = ::torch::optim;

struct Training {
  Training(const std::string& folder, lr::Schedule schedule)
      : scheduler(optimizer, std::move(schedule)), checkpoints(folder) {
    checkpoints.add("schedule", scheduler).add("optimizer", optimizer);
  }
  at::Tensor weight = at::ones({2}).requires_grad_(true);
  optim::SGD optimizer{{weight}, optim::SGDOptions(1.0).momentum(0.9)};
  LrScheduler scheduler;
  Checkpoints checkpoints;
};

TEST(LoadedSchedule, AnotherOneThanThatOfTheCheckpointHolds) {
  const std::string name = "horon_loaded_schedule_" + std::to_string(getpid());
  const std::string folder = broadcast_bytes((fs::temp_directory_path() / name).string());
  {
    Training first(folder, [](double position) { return 1 / (1 + position); });
    first.scheduler.set_steps(3);
    first.checkpoints.save(3);
    first.checkpoints.wait();
  }
  Training second(folder, [](double position) { return 0.5 + position; });
  ASSERT_TRUE(second.checkpoints.load_latest());
  EXPECT_EQ(second.scheduler.steps(), 3);
  EXPECT_THAT(second.scheduler.learning_rates(), testing::ElementsAre(3.5));
  EXPECT_EQ(second.optimizer.param_groups().front().options().get_lr(), 3.5);
  barrier();
  if (rank() == 0) fs::remove_all(folder);
}

}  // namespace
}  // namespace horon::loaded_schedule_test
