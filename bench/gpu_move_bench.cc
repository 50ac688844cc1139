// gpu_move_bench: how fast the kernels that pack and unpack fusion buffers move bytes on a GPU,
// beside CUDA's own copy from device to device. bench/README.md says how to read its figures.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <cuda_runtime_api.h>

#include "horon/bench/json_file.h"
#include "horon/bench/standard_output.h"
#include "horon/bench/statistics.h"
#include "horon/core/base/error.h"
#include "horon/core/base/replace_file.h"
#include "horon/core/base/text.h"
#include "horon/ops/cuda/cuda_library.h"

namespace {

using namespace horon;
using ops::MoveLaunch;

constexpr size_t kMiB = size_t{1} << 20;
// Repetitions walk through all of it, so that what they touch next is not in the cache.
constexpr size_t kRegion = 1024 * kMiB;

void check(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return;
  throw Error(ErrorCode::OperationFailed, core::concat(call, ": ", cudaGetErrorString(error)));
}

// One size of fusion buffer, and the tensors that it is made of. In the buffer they follow each
// other without gaps: behind a tensor with an odd number of elements the next ones are aligned to 4
// bytes only.
struct Size {
  size_t bytes;
  size_t tensors;
  size_t alignment = 16;  // of the tensors in the buffer, bytes of float32
};
constexpr Size kSizes[] = {{4 * kMiB, 1000},   {1 * kMiB, 1},        {1 * kMiB, 60},
                           {25 * kMiB, 1},     {25 * kMiB, 60},      {25 * kMiB, 1000},
                           {25 * kMiB, 60, 4}, {25 * kMiB, 1000, 4}, {64 * kMiB, 1},
                           {64 * kMiB, 60},    {256 * kMiB, 1},      {256 * kMiB, 60}};

// In the order in which they take turns.
enum class Contender { Copy, Pack, ScaleAndCheck, CopyOfCasts, Narrow, Widen };
constexpr Contender kContenders[] = {Contender::Copy,          Contender::Pack,
                                     Contender::ScaleAndCheck, Contender::CopyOfCasts,
                                     Contender::Narrow,        Contender::Widen};

const char* name_of(Contender contender) {
  switch (contender) {
    case Contender::Copy:
      return "cudaMemcpyAsync";
    case Contender::CopyOfCasts:
      return "cudaMemcpyAsync of 3/4";
    case Contender::Pack:
      return "pack";
    case Contender::Narrow:
      return "pack to bfloat16";
    case Contender::Widen:
      return "unpack from bfloat16";
    case Contender::ScaleAndCheck:
      return "unpack, scale, check";
  }
  return "";
}

bool is_copy(Contender contender) {
  return contender == Contender::Copy || contender == Contender::CopyOfCasts;
}

// A launch from or to 16 bits reads and writes three quarters of the bytes. So does CopyOfCasts,
// the copy that such a launch is compared with.
bool moves_less(Contender contender) {
  return contender == Contender::CopyOfCasts || contender == Contender::Narrow ||
         contender == Contender::Widen;
}

// Bytes read and written for each byte of float32.
double traffic_of(Contender contender) { return moves_less(contender) ? 1.5 : 2.0; }

MoveLaunch empty_launch(Contender contender) {
  switch (contender) {
    case Contender::Narrow:
      return MoveLaunch::scale(DataType::Float32, DataType::BFloat16, 0.5);
    case Contender::Widen:
      return MoveLaunch::scale(DataType::BFloat16, DataType::Float32, 2.0);
    case Contender::ScaleAndCheck:
      return MoveLaunch::scale(DataType::Float32, DataType::Float32, 2.0);
    default:
      return {};
  }
}

// Where tensor `i` begins in the buffer, in elements. With a step of 1, all tensors but the first
// begin at odd elements.
size_t begin_of(size_t i, size_t elements, size_t tensors, size_t step) {
  const size_t begin = elements * i / tensors / step * step;
  return step == 1 && i > 0 && i < tensors ? begin | 1 : begin;
}

class Bench {
 public:
  explicit Bench(int device)
      : cuda_(ops::open_cuda(device)),
        from_(cuda_->allocate(kRegion)),
        to_(cuda_->allocate(kRegion)),
        flag_(cuda_->allocate(sizeof(uint32_t))),
        stream_(cuda_->create_stream()) {
    for (std::byte* memory : {from_, to_}) {
      check("cudaMemsetAsync", cudaMemsetAsync(memory, 0, kRegion, stream()));
    }
    check("cudaEventCreate", cudaEventCreate(&begin_));
    check("cudaEventCreate", cudaEventCreate(&end_));
  }

  std::string device_name() const { return cuda_->device_name(); }

  // Microseconds for one launch.
  double time_of(Contender contender, const Size& size) {
    const size_t calls = std::clamp<size_t>(256 * kMiB / size.bytes, 4, 64);
    std::vector<MoveLaunch> launches;
    std::vector<size_t> places;
    for (size_t i = 0; i < calls; ++i) {
      if (place_ + size.bytes > kRegion) place_ = 0;
      places.push_back(place_);
      if (!is_copy(contender)) launches.push_back(launch_at(contender, size, place_));
      place_ += size.bytes;
    }
    const size_t copied = moves_less(contender) ? size.bytes / 4 * 3 : size.bytes;
    check("cudaEventRecord", cudaEventRecord(begin_, stream()));
    for (size_t i = 0; i < calls; ++i) {
      if (is_copy(contender)) {
        check("cudaMemcpyAsync", cudaMemcpyAsync(to_ + places[i], from_ + places[i], copied,
                                                 cudaMemcpyDeviceToDevice, stream()));
      } else {
        cuda_->launch(launches[i], stream_);
      }
    }
    check("cudaEventRecord", cudaEventRecord(end_, stream()));
    check("cudaEventSynchronize", cudaEventSynchronize(end_));
    float milliseconds = 0;
    check("cudaEventElapsedTime", cudaEventElapsedTime(&milliseconds, begin_, end_));
    return static_cast<double>(milliseconds) * 1e3 / static_cast<double>(calls);
  }

 private:
  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_); }

  // The tensors lie in `from` in the reverse order, each where an allocator would put it: the
  // tensors of a program are no neighbours either.
  MoveLaunch launch_at(Contender contender, const Size& size, size_t place) {
    MoveLaunch launch = empty_launch(contender);
    if (contender == Contender::ScaleAndCheck) {
      launch.report_not_finite(reinterpret_cast<uint32_t*>(flag_));
    }
    const size_t floats = size.bytes / sizeof(float);
    const bool is_bytes = contender == Contender::Pack;
    const size_t from_size = is_bytes ? 4 : size_of(launch.parameters().from_type);
    const size_t to_size = is_bytes ? 4 : size_of(launch.parameters().to_type);
    const size_t step = size.alignment / sizeof(float);
    for (size_t i = 0; i < size.tensors; ++i) {
      const size_t begin = begin_of(i, floats, size.tensors, step);
      const size_t end = begin_of(i + 1, floats, size.tensors, step);
      const size_t mirrored = (floats - end) / 4 * 4;
      const size_t count = is_bytes ? (end - begin) * sizeof(float) : end - begin;
      const bool added = launch.add(from_ + place + mirrored * from_size,
                                    to_ + place + begin * to_size, static_cast<int64_t>(count));
      HORON_CHECK(added, "the tensors of a size fit in one launch");
    }
    return launch;
  }

  const std::shared_ptr<ops::CudaApi> cuda_;
  std::byte* const from_;  // freed with the process
  std::byte* const to_;
  std::byte* const flag_;
  const ops::CudaStream stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  size_t place_ = 0;
};

// All contenders alternate.
nlohmann::json measure(Bench& bench, const Size& size, int repetitions) {
  constexpr size_t kCount = std::size(kContenders);
  std::vector<std::vector<double>> times(kCount);
  for (int i = -2; i < repetitions; ++i) {
    for (size_t c = 0; c < kCount; ++c) {
      const double time = bench.time_of(kContenders[c], size);
      if (i >= 0) times[c].push_back(time);
    }
  }
  nlohmann::json rows = nlohmann::json::array();
  for (size_t c = 0; c < kCount; ++c) {
    const double traffic = traffic_of(kContenders[c]) * static_cast<double>(size.bytes);
    const auto copy =
        static_cast<size_t>(moves_less(kContenders[c]) ? Contender::CopyOfCasts : Contender::Copy);
    std::vector<double> shares;
    for (size_t i = 0; i < times[c].size(); ++i) shares.push_back(times[copy][i] / times[c][i]);
    const bench::Quartiles share = bench::quartiles(shares);
    const double time = bench::median(times[c]);
    rows.push_back({{"bytes", size.bytes},
                    {"tensors", size.tensors},
                    {"tensors_aligned_to", size.alignment},
                    {"contender", name_of(kContenders[c])},
                    {"time_us", time},
                    {"GB_per_s", traffic / time / 1e3},
                    {"of_copy", share.median},
                    {"of_copy_lower", share.lower},
                    {"of_copy_upper", share.upper}});
    std::printf("%10zu %7zu %5zu  %-22s %10.2f %9.0f %8.2f (%.2f to %.2f)\n", size.bytes,
                size.tensors, size.alignment, name_of(kContenders[c]), time, traffic / time / 1e3,
                share.median, share.lower, share.upper);
  }
  std::fflush(stdout);
  return rows;
}

int run(const std::string& json, int repetitions) {
  if (!json.empty()) core::require_replaceable(json);  // before all the work
  const ops::CudaStatus& status = ops::cuda_status();
  if (!status.unavailable.empty()) {
    std::printf("no GPU: %s\n", status.unavailable.c_str());
    return 77;  // what test runners take for "skipped"
  }
  Bench bench(0);
  std::printf("# %s; traffic counts bytes read and written\n", bench.device_name().c_str());
  std::printf("%10s %7s %5s  %-22s %10s %9s %8s\n", "bytes", "tensors", "align", "", "time (us)",
              "GB/s", "of copy");
  nlohmann::json rows = nlohmann::json::array();
  for (const Size& size : kSizes) {
    for (auto& row : measure(bench, size, repetitions)) rows.push_back(std::move(row));
  }
  if (!json.empty()) {
    bench::write_json_file(
        json,
        {{"machine", bench::describe_machine()}, {"device", bench.device_name()}, {"rows", rows}});
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string json;
  int repetitions = 21;
  CLI::App app("Bandwidth of the kernels that pack and unpack, beside CUDA's copy.");
  app.add_option("--json", json, "also write results to this file");
  app.add_option("--repetitions", repetitions, "timed calls of each contender, in alternation")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    return bench::code_with_output("gpu_move_bench", run(json, repetitions));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_move_bench: %s\n", error.what());
    return 1;
  }
}
