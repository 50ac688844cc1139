// Properties of device memory that only a device of threads can show.
#include "horon/tests/support/host_gpu/host_cuda.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/cuda/missing_kernels.h"

namespace horon::ops {
namespace {

// Scratch is released by the thread that steps the loop, which must not wait for the device.
TEST(HostCuda, MemoryIsGivenBackWithoutWaitingForTheDevice) {
  const auto cuda = std::make_shared<test::HostCuda>();
  CudaMemory memory(cuda);
  std::atomic<bool> may_end{false};
  auto& queue = static_cast<CudaQueue&>(memory.queue());
  std::shared_ptr<std::byte> block = memory.allocate(1 << 20);
  cuda->enqueue(queue.stream(), [&may_end, used = block.get()] {
    *used = std::byte{1};  // as long as this may run, the memory is there
    return may_end.load();
  });
  block.reset();
  may_end = true;  // a release that waits for the device never comes here
  queue.record()->wait();
}

TEST(MissingKernels, TheErrorNamesTheCure) {
  const Error error = missing_kernels("Tesla V100", 7, 0, "no kernel image is available");
  EXPECT_EQ(error.code(), ErrorCode::Config);
  EXPECT_THAT(error.what(),
              testing::AllOf(testing::HasSubstr("Tesla V100, of compute capability 7.0 (CUDA: no "),
                             testing::HasSubstr("with 70 in CMAKE_CUDA_ARCHITECTURES")));
}

TEST(HostCuda, NothingIsOpenedBeforeThereIsWork) {
  int opened = 0;
  CudaMemory memory(3, [&] {
    ++opened;
    return std::make_shared<test::HostCuda>(3);
  });
  EXPECT_EQ(memory.device_index(), 3);
  EXPECT_FALSE(memory.queue().immediate());
  EXPECT_EQ(opened, 0);
  memory.queue().record()->wait();
  EXPECT_NE(memory.allocate(10), nullptr);
  EXPECT_EQ(opened, 1);
}

// As a rank that has joined gives what changes no minimum, beside tensors of others.
TEST(HostCuda, FillsWithSeveralPatternsBesideACast) {
  CudaMemory memory(std::make_shared<test::HostCuda>());
  const std::shared_ptr<std::byte> block = memory.allocate(64);
  auto* const numbers = reinterpret_cast<float*>(block.get());
  numbers[0] = 1.5F;
  numbers[1] = -2;
  std::byte* const narrowed = block.get() + 16;
  std::byte* const low = block.get() + 32;
  std::byte* const high = block.get() + 48;
  std::array<core::CopyItem, 3> items;
  items[0] = {.from = block.get(), .to = narrowed, .bytes = 2 * sizeof(float)};
  items[0].cast = core::CopyItem::Cast::Narrow;
  items[0].type = Compression::BFloat16;
  items[1] = {.to = low, .bytes = 16, .pattern = 0x1111111111111111};
  items[2] = {.to = high, .bytes = 16, .pattern = 0x2222222222222222};
  memory.queue().copy(items);
  memory.queue().record()->wait();
  const std::array<uint16_t, 2> expected = {0x3fc0, 0xc000};
  EXPECT_EQ(std::memcmp(narrowed, expected.data(), sizeof expected), 0);
  EXPECT_EQ(std::count(low, low + 16, std::byte{0x11}), 16);
  EXPECT_EQ(std::count(high, high + 16, std::byte{0x22}), 16);
}

TEST(HostCuda, AGuardGivesTheThreadItsDeviceBack) {
  const test::HostCuda mine(0);
  const test::HostCuda other(5);
  EXPECT_EQ(test::HostCuda::current_device(), 0);
  {
    const CudaDeviceGuard outer(other);
    EXPECT_EQ(test::HostCuda::current_device(), 5);
    {
      const CudaDeviceGuard inner(mine);
      EXPECT_EQ(test::HostCuda::current_device(), 0);
    }
    const CudaDeviceGuard same(other);
    EXPECT_EQ(test::HostCuda::current_device(), 5);
  }
  EXPECT_EQ(test::HostCuda::current_device(), 0);
}

}  // namespace
}  // namespace horon::ops
