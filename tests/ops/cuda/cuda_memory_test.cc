// Memory, streams and events of a device, on the GPU that this program is linked with.
#include "horon/ops/cuda/cuda_memory.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/tests/support/gpu/gpu.h"

namespace horon::ops {
namespace {

class CudaMemoryTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { gpu = test::open_gpu(0, test::Needs::Cuda, why_none); }
  static void TearDownTestSuite() { gpu.reset(); }
  void SetUp() override {
    if (gpu == nullptr) GTEST_SKIP() << "no GPU: " << why_none;
  }

  static core::CopyItem item(const std::byte* from, std::byte* to, size_t bytes) {
    core::CopyItem made;
    made.from = from;
    made.to = to;
    made.bytes = bytes;
    return made;
  }
  static core::CopyItem fill(std::byte* to, size_t bytes, uint8_t value) {
    core::CopyItem made = item(nullptr, to, bytes);
    std::memset(&made.pattern, value, sizeof made.pattern);
    return made;
  }

  static inline std::unique_ptr<test::Gpu> gpu;
  static inline std::string why_none;
};

TEST_F(CudaMemoryTest, IsAlignedAndOfTheDevice) {
  CudaMemory memory(gpu->cuda());
  EXPECT_EQ(memory.device(), DeviceKind::Cuda);
  EXPECT_EQ(memory.device_index(), gpu->cuda()->device());
  for (const size_t bytes : {1, 255, 4096, 1 << 20}) {
    const auto block = memory.allocate(bytes);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.get()) % 256, 0U);
  }
  EXPECT_EQ(memory.allocate(0), nullptr);
}

TEST_F(CudaMemoryTest, CopiesFollowEachOther) {
  constexpr size_t kBytes = 1 << 20;
  CudaMemory memory(gpu->cuda());
  const auto first = memory.allocate(kBytes);
  const auto second = memory.allocate(kBytes);
  const auto result = gpu->common_memory(kBytes);
  std::memset(result.get(), 0, kBytes);
  for (uint8_t round = 1; round <= 20; ++round) {
    memory.queue().copy(std::vector{fill(first.get(), kBytes, round)});
    memory.queue().copy(std::vector{item(first.get(), second.get(), kBytes)});
  }
  memory.queue().copy(std::vector{item(second.get(), result.get(), kBytes)});
  const auto event = memory.queue().record();
  event->wait();
  EXPECT_TRUE(event->happened());
  for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(result.get()[i], std::byte{20}) << i;
}

// One stream writes slowly, another one waits for its event and reads.
TEST_F(CudaMemoryTest, AStreamWaitsForAnEventOfAnother) {
  constexpr size_t kBytes = 16 << 20;
  CudaMemory writer(gpu->cuda());
  CudaMemory reader(gpu->cuda());
  const auto data = writer.allocate(kBytes);
  const auto result = gpu->common_memory(kBytes);
  for (uint8_t round = 1; round <= 3; ++round) {
    for (uint8_t value = 0; value <= round; ++value) {
      writer.queue().copy(std::vector{fill(data.get(), kBytes, value)});
    }
    const auto written = writer.queue().record();
    ASSERT_TRUE(reader.queue().wait_for(*written));
    reader.queue().copy(std::vector{item(data.get(), result.get(), kBytes)});
    const auto read = reader.queue().record();
    ASSERT_TRUE(writer.queue().wait_for(*read));
    read->wait();
    EXPECT_EQ(result.get()[0], std::byte{round});
    EXPECT_EQ(result.get()[kBytes - 1], std::byte{round});
  }
  writer.queue().record()->wait();
}

}  // namespace
}  // namespace horon::ops
