// Checkpoints of tensors and random numbers of a GPU: LibTorch's device "cuda" made of threads.
#include <filesystem>
#include <string>
#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"
#include "horon/torch_bindings/collectives/bytes.h"

namespace horon::gpu_checkpoints_test {
namespace {

namespace fs = std::filesystem;

// The next numbers of the default generators, of this rank's GPU and of the CPU.
at::Tensor next_numbers() {
  const at::Generator of_gpu = at::globalContext().defaultGenerator(device());
  EXPECT_NE(of_gpu, at::globalContext().defaultGenerator(at::kCPU));
  return at::cat({at::randn({3}, of_gpu), at::randn({3})});
}

TEST(GpuCheckpoints, KeepTensorsAndRandomNumbersOfTheGpu) {
  const std::string name = "horon_gpu_checkpoints_" + std::to_string(getpid());
  const std::string folder = broadcast_bytes((fs::temp_directory_path() / name).string());
  at::Generator of_gpu = at::globalContext().defaultGenerator(device());
  at::Generator of_cpu = at::globalContext().defaultGenerator(at::kCPU);
  of_gpu.set_current_seed(static_cast<uint64_t>(100 + rank()));  // each rank has its own numbers
  of_cpu.set_current_seed(static_cast<uint64_t>(150 + rank()));
  (void)next_numbers();
  const at::Tensor w = at::full({5}, 2.5).to(device());
  Checkpoints checkpoints(folder);
  checkpoints.add("w", {{"w", w}});
  checkpoints.save(1);
  const at::Tensor want = next_numbers();
  (void)next_numbers();
  w.zero_();
  ASSERT_TRUE(checkpoints.load_latest());
  EXPECT_TRUE(next_numbers().equal(want));
  EXPECT_TRUE(w.is_cuda());
  EXPECT_TRUE(w.cpu().equal(at::full({5}, 2.5)));
  barrier();
  if (rank() == 0) fs::remove_all(folder);
}

}  // namespace
}  // namespace horon::gpu_checkpoints_test
