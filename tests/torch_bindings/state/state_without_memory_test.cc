// State of which one rank can't make a copy: all ranks hear of it, and none waits for that one.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/tests/torch_bindings/no_memory.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/state/broadcast_state.h"
#include "horon/torch_bindings/state/local_sgd.h"
#include "horon/torch_bindings/state/replicas.h"

namespace horon::state_without_memory_test {
namespace {

using testing::HasSubstr;
using testing_support::error_of;
using testing_support::error_without_memory;
using testing_support::tells_of_rank_0;

class StateWithoutMemory : public testing::Test {
 protected:
  void TearDown() override { barrier(); }  // no rank is still in a call
};

at::Tensor turned() { return at::ones({40, 20}).t(); }

TEST_F(StateWithoutMemory, Parameters) {
  for (const at::Tensor& first : {turned(), at::ones({400}, at::kComplexFloat).conj()}) {
    const at::Tensor second = at::full({2}, rank());
    const NamedTensors both{{"a", first}, {"b", second}};
    EXPECT_THAT(error_without_memory([&] { broadcast_parameters(both); }), tells_of_rank_0());
    EXPECT_TRUE(at::equal(second, at::zeros({2})));
    broadcast_parameters(both);
  }
}

TEST_F(StateWithoutMemory, StateOfAnOptimizer) {
  const auto large = [] { return at::ones({400, 200}).t(); };
  const at::Tensor first = large().requires_grad_(true);
  const at::Tensor second = at::ones({2}).requires_grad_(true);
  torch::optim::SGD optimizer({first, second}, torch::optim::SGDOptions(0.1).momentum(0.9));
  first.mutable_grad() = large();
  second.mutable_grad() = at::ones({2});
  optimizer.step();
  EXPECT_THAT(error_without_memory([&] { broadcast_optimizer_state(optimizer); }, 100'000),
              tells_of_rank_0());
  broadcast_optimizer_state(optimizer);
}

TEST_F(StateWithoutMemory, Replicas) {
  const at::Tensor weight = turned();
  EXPECT_THAT(error_without_memory([&] {
                check_replicas_equal({{"w", weight}});
              }),
              tells_of_rank_0());
  check_replicas_equal({{"w", weight}});
}

TEST_F(StateWithoutMemory, OuterStepOfLocalSgd) {
  const at::Tensor x = at::ones({1000}).requires_grad_(true);
  LocalSgd local({{"x", x}}, {.outer_lr = 0.5});
  EXPECT_THAT(error_without_memory([&] { local.average(); }), tells_of_rank_0());
  local.average();
}

// Looks at the memory, not at a copy of it.
TEST_F(StateWithoutMemory, AConjugateOfOneElementInSeveralPlacesIsRefused) {
  const NamedTensors expanded{{"x", at::zeros({1}, at::kComplexFloat).expand({4}).conj()}};
  const auto refused = HasSubstr("several elements at one address");
  EXPECT_THAT(error_of([&] { broadcast_parameters(expanded); }), refused);
  EXPECT_THAT(error_of([&] { (void)LocalSgd(expanded); }), refused);
}

}  // namespace
}  // namespace horon::state_without_memory_test
