// Times one collective at one size, with Horon and optionally with MPI, in place and out of place.
//
// Before each timed call every rank writes new values into its buffer, and all ranks meet in an MPI
// barrier. Each rank times only the call; the time of a repetition is that of its slowest rank.
// Messages below 64 KiB are timed several at once, since one call is too short for the clock; the
// time of the rewriting between them is subtracted. On a GPU always several calls follow each other
// in its stream, without rewriting, and the host waits for the last. Repetitions of Horon and of
// MPI alternate, so that other load disturbs both alike. Figures are medians.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "horon/bench/collective_case.h"
#include "horon/bench/gpu_memory.h"
#include "horon/bench/mpi_peer.h"
#include "horon/bench/options.h"

namespace horon::bench {

// Seconds per call.
struct Timing {
  double median_s = 0;
  double min_s = 0;
  double p50_s = 0;
  double p99_s = 0;
};

struct Placement {
  Timing horon;
  std::optional<Timing> peer;
  int64_t wrong = 0;  // wrong elements, over all ranks and checked repetitions
};

struct Row {
  Shape shape;
  std::optional<Placement> out_of_place;
  std::optional<Placement> in_place;
};

class Measurement {
 public:
  // Allocates the buffers for the largest size, and writes them once. The runtime and the peer must
  // outlive this object.
  Measurement(const Options& options, core::Runtime& runtime, MpiPeer& mpi);
  ~Measurement();

  // Collective. `bytes` is one of options.sizes(). Throws the error of a collective.
  Row run(int64_t bytes);

 private:
  struct Buffers;
  using Side = void (Measurement::*)(const Call& call);

  Placement run_placement(const Shape& shape, bool in_place);
  Call make_call(const Shape& shape, bool in_place, bool peer) const;
  double time_once(const Call& call, Side side, int calls);
  double time_on_gpu(Call call, int calls);
  // New values into the input, and the result of the call from where it is.
  void rewrite(const Call& call);
  const std::byte* result_of(const Call& call);
  void run_horon(const Call& call);
  void run_peer(const Call& call);
  int64_t check(const Call& call);
  Timing summarize(const std::vector<double>& samples);

  const Options& options_;
  const CollectiveCase& case_;
  core::Runtime& runtime_;
  MpiPeer& mpi_;
  const PeriodicData mine_;
  const std::vector<PeriodicData> expected_;
  std::unique_ptr<Buffers> buffers_;
  // With Options::device Cuda.
  std::shared_ptr<ops::JobGpu> gpu_;
  std::unique_ptr<GpuMemory> gpu_memory_;
  std::vector<std::byte> staging_;
  int64_t offset_ = 0;  // of the values that the buffers hold (see PeriodicData)
};

}  // namespace horon::bench
