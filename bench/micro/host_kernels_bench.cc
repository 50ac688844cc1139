// Reduction of two ranks' buffers into both, and scaling, in bytes read and written per second.
#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "horon/ops/host/host_kernels.h"

namespace {

using namespace horon;

// Random bits that are small finite numbers in every floating type. (Pages of zeros would be copied
// faster.)
std::vector<std::byte> random_values(DataType dtype, int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> small(-1.0F, 1.0F);
  std::vector<float> floats(static_cast<size_t>(count));
  for (float& value : floats) value = small(random);
  std::vector<std::byte> bytes(floats.size() * size_of(dtype));
  if (dtype == DataType::Float32) {
    ops::scale(dtype, reinterpret_cast<const std::byte*>(floats.data()), bytes.data(), count, 1.0);
  } else {
    ops::narrow(dtype, floats.data(), bytes.data(), count, 1.0);
  }
  return bytes;
}

void reduce_two(benchmark::State& state, DataType dtype) {
  const int64_t count = state.range(0) / static_cast<int64_t>(size_of(dtype));
  std::vector<std::byte> a = random_values(dtype, count, 1);
  std::vector<std::byte> b = random_values(dtype, count, 2);
  const std::array<const std::byte*, 2> inputs{a.data(), b.data()};
  const std::array<std::byte*, 2> outputs{a.data(), b.data()};
  // Average, since its result stays finite however often it is repeated.
  const ops::Reduction reduction{dtype, ReduceOp::Average, 1.0, 1.0, 2};
  for (auto _ : state) {
    ops::reduce_many(reduction, inputs, outputs, count);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 4);
  state.SetLabel(std::string(ops::kernel_instruction_set()));
}
BENCHMARK_CAPTURE(reduce_two, float32, DataType::Float32)->Range(4 << 10, 16 << 20);
BENCHMARK_CAPTURE(reduce_two, bfloat16, DataType::BFloat16)->Range(4 << 10, 16 << 20);
BENCHMARK_CAPTURE(reduce_two, float16, DataType::Float16)->Range(4 << 10, 16 << 20);

void scale_in_place(benchmark::State& state, DataType dtype) {
  const int64_t count = state.range(0) / static_cast<int64_t>(size_of(dtype));
  std::vector<std::byte> values = random_values(dtype, count, 3);
  for (auto _ : state) {
    ops::scale(dtype, values.data(), values.data(), count, -1.0);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0) * 2);
}
BENCHMARK_CAPTURE(scale_in_place, float32, DataType::Float32)->Range(4 << 10, 16 << 20);
BENCHMARK_CAPTURE(scale_in_place, bfloat16, DataType::BFloat16)->Range(4 << 10, 16 << 20);

}  // namespace
