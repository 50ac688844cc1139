// Direct calls of MPI: the collectives that Horon's are compared with, and the barriers and gathers
// that the measurement itself needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"

namespace horon::bench {

// May exist between init() and shutdown(). It has its own communicator. Used by one thread. Errors
// of MPI end the job, which is MPI's default.
class MpiPeer {
 public:
  // Collective. Throws Error(Config) if MPI does not allow calls from several threads.
  MpiPeer();
  ~MpiPeer();
  MpiPeer(const MpiPeer&) = delete;
  MpiPeer& operator=(const MpiPeer&) = delete;

  int size() const;
  void barrier();
  // The maximum over all ranks, element by element.
  std::vector<double> max(std::vector<double> mine);
  int64_t sum(int64_t mine);
  // The values of all ranks, in the order of ranks.
  std::vector<double> gather(double mine);
  std::vector<std::string> gather_text(const std::string& mine);

  // Why MPI can't run this type and op; empty if it can. MPI has no average: its sum is timed.
  static std::string refusal(DataType dtype, ReduceOp op);
  // In place if input == output. Counts are elements; a count above 2^31-1 aborts.
  void allreduce(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
                 ReduceOp op);
  void broadcast(std::byte* data, int64_t count, DataType dtype, int root);
  // Each rank gives `count` elements.
  void allgather(const std::byte* input, std::byte* output, int64_t count, DataType dtype);
  // Each rank gives `count` elements to each rank.
  void reducescatter(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
                     ReduceOp op);
  void alltoall(const std::byte* input, std::byte* output, int64_t count, DataType dtype);
  // Each rank gives the root `count` elements, or gets them.
  void gather(const std::byte* input, std::byte* output, int64_t count, DataType dtype, int root);
  void scatter(const std::byte* input, std::byte* output, int64_t count, DataType dtype, int root);

  // "Open MPI v4.1.4, ..."
  static std::string library_version();

 private:
  struct Communicator;
  std::unique_ptr<Communicator> communicator_;
};

}  // namespace horon::bench
