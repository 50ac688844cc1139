// Messages between the members of a set by MPI_Isend and MPI_Irecv.
#pragma once

#include <vector>

#include <mpi.h>

#include "horon/ops/hierarchical/messages.h"

namespace horon::ops {

// Shares the communicator with MPI's collectives, and with MpiExchange and MpiPair, which have tags
// of their own. A second object may share it too, for allreduces beside those of the first one:
// Tags::Beside, with tags below kFirstBlockTag only.
class MpiMessages final : public Messages {
 public:
  enum class Tags : uint8_t { All, Beside };
  // The caller owns `communicator` and keeps it alive for longer than the messages. From now on
  // errors on it are returned instead of fatal.
  explicit MpiMessages(MPI_Comm communicator, Tags tags = Tags::All);

  // Who has which of the 32768 tags that every MPI must have, on one communicator: MpiExchange 0 to
  // 8190, Beside 8191 to 16382, MpiPair 16383, All the rest.
  static constexpr int kFirstTag = 32768 - kTags;
  static constexpr int kTagOfPairs = kFirstTag - 1;
  static constexpr int kFirstTagBeside = kTagOfPairs - kFirstBlockTag;

  Id send(int to, int tag, const std::byte* data, int64_t bytes) override;
  Id send_and_await(int to, int tag, const std::byte* data, int64_t bytes) override;
  Id receive(int from, int tag, std::byte* data, int64_t bytes) override;
  void progress() override;
  bool take_if_over(Id id) override;

 private:
  // MPI_Isend or MPI_Issend.
  using Send = decltype(&MPI_Isend);
  Id send_by(Send call, const char* name, int to, int tag, const std::byte* data, int64_t bytes);
  Id new_id();
  void clear();  // of ids that are all free
  // Keeps the first error, and throws it whenever there is one.
  void check(int code, const char* call);
  void check_kept() const;

  const MPI_Comm communicator_;
  const int first_tag_;
  const int tags_;
  // [id]; null: over, or free
  std::vector<MPI_Request> requests_;
  std::vector<Id> free_;
  // Used within one progress().
  std::vector<int> ended_;
  std::vector<MPI_Status> statuses_;
  int error_ = MPI_SUCCESS;
  const char* failed_call_ = "";
};

}  // namespace horon::ops
