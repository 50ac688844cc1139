// Direct calls of MPI: the collectives that Horon's are compared with, and the barriers and gathers
// that the measurement itself needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "horon/bench/peer.h"
#include "horon/ops/session/process_set.h"

namespace horon::bench {

// May exist between init() and shutdown(). It has its own communicator, of the members of a set; on
// the other ranks nothing but size() may be called. Used by one thread. Errors of MPI end the job,
// which is MPI's default.
class MpiPeer final : public Peer {
 public:
  // Collective over all ranks of the job. Throws Error(Config) if MPI does not allow calls from
  // several threads.
  explicit MpiPeer(const ProcessSet& set = {});
  ~MpiPeer() override;
  MpiPeer(const MpiPeer&) = delete;
  MpiPeer& operator=(const MpiPeer&) = delete;
  // A peer of the same members, on a communicator of its own. Collective over them.
  std::unique_ptr<MpiPeer> duplicate() const;

  // After this, reducescatter() calls MPI_Reduce_scatter instead of MPI_Reduce_scatter_block: MPI
  // has other algorithms for it.
  void use_reduce_scatter_with_counts() { with_counts_ = true; }

  int size() const override;
  // MPI has all kinds, types and ops, but the ops on 16-bit floats are Horon's (mpi_half_ops.h),
  // and a sum of bool is an "or". A count above 2^31-1 aborts; Peers leaves MPI out before that.
  void allreduce(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
                 ReduceOp op) override;
  void broadcast(std::byte* data, int64_t count, DataType dtype, int root) override;
  void allgather(const std::byte* input, std::byte* output, int64_t count, DataType dtype) override;
  void reducescatter(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
                     ReduceOp op) override;
  void alltoall(const std::byte* input, std::byte* output, int64_t count, DataType dtype) override;
  void gather(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
              int root) override;
  void scatter(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
               int root) override;
  void barrier() override;

  // The maximum over all ranks, element by element.
  std::vector<double> max(std::vector<double> mine);
  int64_t sum(int64_t mine);
  // The values of all ranks, in the order of ranks.
  std::vector<double> gather(double mine);
  std::vector<std::string> gather_text(const std::string& mine);
  // Half the time in which a byte goes from the first member to the second and back; 0 if there is
  // one member.
  double ping_s();

  // Returns when all members have called it. Sleeps meanwhile, so that the core is free for members
  // that are not yet there: MPI_Barrier() may keep it.
  void rest_until_all_are_here();
  // Returns when all ranks of the job have called it, members or not. Sleeps meanwhile too.
  static void meet_all_ranks();
  // "Open MPI v4.1.4, ..."
  static std::string library_version();

 private:
  struct Communicator;
  explicit MpiPeer(std::unique_ptr<Communicator> communicator);

  std::unique_ptr<Communicator> communicator_;
  bool with_counts_ = false;
};

}  // namespace horon::bench
