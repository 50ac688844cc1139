// What a small allreduce costs through the tensor API, beside one raw MPI call of the same bytes:
//   mpirun -np 2 tensor_call_bench [--iters N] [--only TEXT]
// bench/README.md says how to read its figures.
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include "horon/bench/mpi_peer.h"
#include "horon/bench/standard_output.h"
#include "horon/bench/statistics.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/horon.h"

namespace {

using namespace horon;
using Clock = std::chrono::steady_clock;

constexpr int kCallsPerSample = 16;  // one call is too short for the clock

// Microseconds of one call, on the slowest rank.
double time_once(bench::MpiPeer& mpi, const std::function<void()>& call) {
  mpi.barrier();
  const auto begin = Clock::now();
  for (int i = 0; i < kCallsPerSample; ++i) call();
  const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
  return mpi.max({time.count() / kCallsPerSample}).front();
}

struct Options {
  int iters = 200;   // timed samples of each call
  std::string only;  // calls with this in their names
};

// The two alternate, so that other load disturbs both alike.
void compare(bench::MpiPeer& mpi, const std::string& what, int64_t bytes, const Options& options,
             const std::function<void()>& call) {
  if (what.find(options.only) == std::string::npos) return;
  const auto count = bytes / static_cast<int64_t>(sizeof(float));
  std::vector<float> values(static_cast<size_t>(count));
  auto* const data = reinterpret_cast<std::byte*>(values.data());
  const auto peer = [&] { mpi.allreduce(data, data, count, DataType::Float32, ReduceOp::Sum); };
  std::vector<double> ours;
  std::vector<double> theirs;
  constexpr int warm_up = 20;
  for (int i = -warm_up; i < options.iters; ++i) {
    const double mine = time_once(mpi, call);
    const double other = time_once(mpi, peer);
    if (i < 0) continue;
    ours.push_back(mine);
    theirs.push_back(other);
  }
  if (rank() != 0) return;
  std::printf("%-34s %8lld %10.2f %10.2f %8.2f %10.2f %10.2f\n", what.c_str(),
              static_cast<long long>(bytes), bench::median(ours), bench::median(theirs),
              bench::median(ours) / bench::median(theirs), bench::percentile(ours, 10),
              bench::percentile(theirs, 10));
}

void measure(bench::MpiPeer& mpi, const Options& options) {
  if (rank() == 0) {
    std::printf("%-34s %8s %10s %10s %8s %10s %10s\n", "call", "bytes", "Horon, us", "MPI, us",
                "ratio", "Horon p10", "MPI p10");
  }
  for (const int64_t bytes : {4, 256, 4096}) {
    at::Tensor x = at::zeros({bytes / 4});
    const std::string name = core::concat("x.", bytes);
    compare(mpi, "allreduce_", bytes, options,
            [&] { allreduce_(x, {.name = name, .op = ReduceOp::Sum}); });
    compare(mpi, "allreduce_async_ and wait", bytes, options,
            [&] { allreduce_async_(x, {.name = name, .op = ReduceOp::Sum}).wait(); });
    compare(mpi, "allreduce", bytes, options,
            [&] { allreduce(x, {.name = name, .op = ReduceOp::Sum}); });
  }
  constexpr int64_t tensors = 64;
  constexpr int64_t bytes = 256;
  std::vector<at::Tensor> group;
  for (int64_t i = 0; i < tensors; ++i) group.push_back(at::zeros({bytes / 4}));
  compare(mpi, "grouped_allreduce_ of 64 tensors", tensors * bytes, options,
          [&] { grouped_allreduce_(group, {.name = "group", .op = ReduceOp::Sum}); });
  // This comes last: each call without a name gets a new number as its name, and these names take
  // the places of all names that come again.
  at::Tensor x = at::zeros({1});
  compare(mpi, "allreduce_ without a name", 4, options,
          [&] { allreduce_(x, {.op = ReduceOp::Sum}); });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Small allreduces of tensors beside raw MPI. Run it as: mpirun -np 2 ...");
  Options options;
  app.add_option("-n,--iters", options.iters, "timed samples of each call")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--only", options.only, "time only calls with this text in their names");
  CLI11_PARSE(app, argc, argv);
  int code = 0;
  try {
    init();
    bench::MpiPeer mpi;
    measure(mpi, options);
  } catch (const std::exception& error) {
    (void)std::fprintf(stderr, "tensor_call_bench: %s\n", error.what());
    code = 1;
  }
  shutdown();
  return bench::code_with_output("tensor_call_bench", code);
}
