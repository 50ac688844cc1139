// A backward() that ends by an exception on one rank, on GPUs. There the engine's own threads run
// it, and their work may end a little later than the call.
#include <exception>
#include <stdexcept>
#include <string>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/gradients/gradient_reducer.h"

namespace horon::gpu_given_up_backward_test {
namespace {

using testing::HasSubstr;

at::Tensor leaf(int64_t elements) { return at::ones({elements}).to(device()).requires_grad_(true); }

std::string error_of_backward(const at::Tensor& loss) {
  try {
    loss.backward();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

void expect_gradient(const at::Tensor& parameter, float value) {
  ASSERT_TRUE(parameter.grad().defined());
  EXPECT_TRUE(at::allclose(parameter.grad().cpu(), at::full({parameter.numel()}, value)))
      << parameter.grad().cpu() << "\nand not " << value;
}

TEST(GpuGivenUpBackward, TheOthersAreToldAndTheNextStepIsRight) {
  const at::Tensor early = leaf(300), late = leaf(5);
  GradientReducer reducer({{"early", early}, {"late", late}},
                          {.bucket_bytes = 1, .first_bucket_bytes = 1});
  const float mean = static_cast<float>(size() + 1) / 2;
  for (int step = 1; step <= 8; ++step) {
    early.mutable_grad().reset();
    late.mutable_grad().reset();
    const bool fails = step % 2 == 1;
    const at::Tensor hidden = early * (step * (rank() + 1));
    if (fails && rank() == 0) {
      hidden.register_hook([](const at::Tensor& gradient) -> at::Tensor {
        throw std::runtime_error("the program's own");
        return gradient;
      });
    }
    const at::Tensor first = hidden.sum();
    // `late` has its gradient first.
    const std::string error = error_of_backward(first + (late * (step * (rank() + 1))).sum());
    if (!fails) {
      EXPECT_EQ(error, "no error");
      expect_gradient(early, static_cast<float>(step) * mean);
      expect_gradient(late, static_cast<float>(step) * mean);
    } else if (rank() == 0) {
      EXPECT_THAT(error, HasSubstr("the program's own"));
    } else {
      EXPECT_THAT(error, HasSubstr("backward() on rank 0 ended with an exception"));
    }
    (void)allreduce(at::ones({1}), {.name = "metric"});
  }
}

}  // namespace
}  // namespace horon::gpu_given_up_backward_test
