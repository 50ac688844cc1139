// MPI itself: the collectives that Horon's are compared with, and the neutral ground (barriers,
// gathered numbers) on which both are timed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::bench {

// Lives between init() and shutdown(), in a communicator of its own. One thread. MPI's errors end
// the job, as is MPI's default.
class MpiPeer {
 public:
  // Collective. Throws Error(Config) if MPI does not allow calls beside those of Horon's thread.
  MpiPeer();
  ~MpiPeer();
  MpiPeer(const MpiPeer&) = delete;
  MpiPeer& operator=(const MpiPeer&) = delete;

  int size() const;
  void barrier();
  // Element by element over all ranks.
  std::vector<double> max(std::vector<double> mine);
  int64_t sum(int64_t mine);
  // One of each rank, in order.
  std::vector<double> gather(double mine);
  std::vector<std::string> gather_text(const std::string& mine);

  // Empty if MPI has this type and op, else why not. MPI has no average: its sum is timed instead.
  static std::string refusal(DataType dtype, ReduceOp op);
  // In place if input == output. Counts are elements; those above 2^31-1 abort.
  void allreduce(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
                 ReduceOp op);
  void broadcast(std::byte* data, int64_t count, DataType dtype, int root);
  // `count` elements of each rank.
  void allgather(const std::byte* input, std::byte* output, int64_t count, DataType dtype);
  // `count` elements for each rank.
  void reducescatter(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
                     ReduceOp op);
  void alltoall(const std::byte* input, std::byte* output, int64_t count, DataType dtype);

  // "Open MPI v4.1.4, ..."
  static std::string library_version();

 private:
  struct Communicator;
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace horon::bench
