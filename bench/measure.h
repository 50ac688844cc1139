// Times one collective at one size, with Horon and with its peers, in place and out of place.
//
// Before each timed call every rank writes new values into its buffer, and all ranks meet in an MPI
// barrier. Each rank times only the call; the time of a repetition is that of its slowest rank.
// Messages below 64 KiB are timed several at once, since one call is too short for the clock; the
// time of the rewriting between them is subtracted. On a GPU always several calls follow each other
// in its stream, without rewriting, and the host waits for the last. Repetitions of Horon and of
// its peers take turns, so that other load disturbs all alike. Figures are medians, and medians of
// the ratios of the repetitions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "horon/bench/collective_case.h"
#include "horon/bench/gpu_memory.h"
#include "horon/bench/mpi_peer.h"
#include "horon/bench/options.h"
#include "horon/bench/peers.h"
#include "horon/bench/statistics.h"
#include "horon/ops/session/process_set.h"

namespace horon::bench {

// Seconds per call.
struct Timing {
  double median_s = 0;
  double min_s = 0;
  double p50_s = 0;
  double p99_s = 0;
};

// A peer's calls between Horon's.
struct PeerTiming {
  PeerKind peer;
  std::string algorithm;  // of Tuned; else empty
  Timing timing;
  // Horon's time over the peer's in the same repetition; quartiles over all of them.
  Quartiles ratio;
};

struct Placement {
  Timing horon;
  int repetitions = 0;
  std::vector<PeerTiming> peers;
  int64_t wrong = 0;  // wrong elements, over all ranks and checked repetitions
};

struct Row {
  Shape shape;
  // Half a round trip of a byte between the first two ranks, by MPI: on a virtual machine it says
  // how near their cores are to each other now.
  double ping_s = 0;
  std::optional<Placement> out_of_place;
  std::optional<Placement> in_place;
};

class Measurement {
 public:
  // Allocates the buffers for the largest size; those of the host are also written once. Only on
  // the members of `set`. The arguments must outlive this object; `peers` may be null.
  Measurement(const Options& options, const ProcessSet& set, core::Runtime& runtime, MpiPeer& mpi,
              Peers* peers);
  ~Measurement();

  // Collective. `bytes` is one of options.sizes(). Throws the error of a collective.
  Row run(int64_t bytes);

 private:
  struct Buffers;
  // Who makes the calls: Horon, or a peer.
  struct Contender {
    Peer* peer;  // null: Horon
    const Call* call;
    std::vector<double> samples = {};
  };

  Placement run_placement(const Shape& shape, bool in_place);
  Call make_call(const Shape& shape, bool in_place, bool peer) const;
  std::vector<PeerTiming> choose_peers(const Call& call, int calls,
                                       std::vector<Contender>& contenders);
  double time_once(const Contender& contender, int calls);
  bool rests_after(const Call& call) const;
  bool time_is_over(int repetitions, double passed_s);
  double time_on_gpu(Call call, int calls);
  // rewrite() puts new values into the call's input. result_of() returns the call's output, in
  // memory of the host.
  void rewrite(const Call& call);
  const std::byte* result_of(const Call& call);
  void run(const Contender& contender);
  int64_t check(const Call& call);

  const Options& options_;
  const ProcessSet set_;
  const int rank_;  // in the set
  const int ranks_;
  const int root_;  // in the set
  const CollectiveCase& case_;
  core::Runtime& runtime_;
  MpiPeer& mpi_;
  Peers* const peers_;
  const PeriodicData mine_;
  const std::vector<PeriodicData> expected_;
  std::unique_ptr<Buffers> buffers_;
  // Null unless Options::device is Cuda.
  std::shared_ptr<ops::JobGpu> gpu_;
  std::unique_ptr<GpuMemory> gpu_memory_;
  std::vector<std::byte> staging_;
  int64_t offset_ = 0;  // of the values that the buffers hold (see PeriodicData)
};

}  // namespace horon::bench
