// What a copy costs: within one process, the same past its caches, and by the kernel, as between
// the private memories of two processes. In bytes copied per second, by one thread and by two.
#include <cstddef>
#include <cstdint>
#include <unistd.h>
#include <vector>

#include <benchmark/benchmark.h>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/host/process_memory.h"
#include "horon/ops/host/stream_copy.h"

namespace {

using namespace horon;

using Copy = bool (*)(std::byte* to, const std::byte* from, size_t bytes);

bool plain(std::byte* to, const std::byte* from, size_t bytes) {
  core::copy_bytes(to, from, bytes);
  return true;
}
bool streamed(std::byte* to, const std::byte* from, size_t bytes) {
  ops::stream_copy(to, from, bytes);
  return true;
}
// The kernel reads this process as it would read another one. But two threads share the lock on
// this process's memory, which two ranks don't: two ranks reach at least the figure of two threads.
bool kernel_read(std::byte* to, const std::byte* from, size_t bytes) {
  return core::read_process(getpid(), to, reinterpret_cast<uint64_t>(from), bytes) == 0;
}
bool kernel_write(std::byte* to, const std::byte* from, size_t bytes) {
  return core::write_process(getpid(), reinterpret_cast<uint64_t>(to), from, bytes) == 0;
}

void copy(benchmark::State& state, Copy one_piece) {
  constexpr size_t kPiece = size_t{256} << 10;  // as the longest one of an exchange on a host
  const auto bytes = static_cast<size_t>(state.range(0));
  const std::vector<std::byte> from(bytes, std::byte{1});
  std::vector<std::byte> to(bytes);
  for (auto _ : state) {
    for (size_t at = 0; at < bytes; at += kPiece) {
      if (!one_piece(to.data() + at, from.data() + at, kPiece)) {
        return state.SkipWithError("the kernel refuses it here");
      }
    }
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void sizes(benchmark::internal::Benchmark* of) {
  of->RangeMultiplier(8)->Range(1 << 20, 64 << 20)->Threads(1)->Threads(2)->UseRealTime();
}
BENCHMARK_CAPTURE(copy, plain, plain)->Apply(sizes);
BENCHMARK_CAPTURE(copy, streamed, streamed)->Apply(sizes);
BENCHMARK_CAPTURE(copy, kernel_read, kernel_read)->Apply(sizes);
BENCHMARK_CAPTURE(copy, kernel_write, kernel_write)->Apply(sizes);

}  // namespace
