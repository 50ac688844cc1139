// A program with LibTorch.
#include <iostream>

#include <ATen/ops/full.h>

#include <horon/horon.h>

int main() {
  horon::init();
  const at::Tensor ones = at::full({1000}, horon::rank() + 1.0);
  const at::Tensor sum = horon::allreduce(ones, {.name = "ones", .op = horon::ReduceOp::Sum});
  if (horon::rank() == 0) {
    std::cout << "torch_user: " << sum[999].item<float>() << std::endl;
  }
  horon::shutdown();
}
