// Local SGD in the memory of a GPU.
#include <gtest/gtest.h>

#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/torch_bindings/state/local_sgd.h"

namespace horon::gpu_local_sgd_test {
namespace {

TEST(GpuLocalSgd, AveragesAndMakesAnOuterStep) {
  for (const bool outer : {false, true}) {
    const at::Tensor x = at::ones({300}).to(device()).requires_grad_(true);
    LocalSgdOptions options{.steps = 2};
    if (outer) options.outer_lr = options.outer_momentum = 0.5;
    LocalSgd local({{"x", x}}, options);
    double expected = 1, momentum = 0;
    const at::NoGradGuard no_grad;
    for (int step = 1; step <= 6; ++step) {
      x.sub_(at::full({300}, rank() + 1.0F).to(device()));
      if (!local.step()) continue;
      const double change = size() + 1.0;  // of two steps, the mean
      momentum = options.outer_momentum * momentum + change;
      expected -= options.outer_lr * (change + options.outer_momentum * momentum);
      EXPECT_TRUE(at::allclose(x.cpu(), at::full({300}, static_cast<float>(expected)), 1e-5, 1e-5))
          << x.cpu()[0] << " and not " << expected;
    }
    EXPECT_EQ(local.averages(), 3);
    const at::Tensor before = x.cpu();
    local.average();  // no step has been made since
    EXPECT_EQ(local.averages(), outer ? 3 : 4);
    EXPECT_TRUE(at::allclose(x.cpu(), before, 1e-6, 0));
  }
}

}  // namespace
}  // namespace horon::gpu_local_sgd_test
