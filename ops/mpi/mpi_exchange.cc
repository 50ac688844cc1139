#include "horon/ops/mpi/mpi_exchange.h"

#include <utility>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/base/error.h"
#include "horon/core/bootstrap/mpi_error.h"
#include "horon/ops/host/host_refusal.h"
#include "horon/ops/mpi/mpi_datatypes.h"
#include "horon/ops/mpi/mpi_in_flight.h"
#include "horon/ops/mpi/mpi_pair.h"

namespace horon::ops {
namespace {

class InFlightExchange final : public MpiInFlight {
 public:
  InFlightExchange(std::shared_ptr<MpiChannel> shared, core::Batch given)
      : MpiInFlight(std::move(shared), std::move(given)),
        // Equal tags are safe: MPI keeps the order of messages between two ranks.
        tag_(static_cast<int>(batch().sequence % kTags)) {
    const auto members = static_cast<size_t>(channel().size());
    HORON_CHECK(batch().send_counts.size() == members && batch().receive_counts.size() == members,
                "one count for each rank in both directions");
    const auto me = static_cast<size_t>(channel().rank());
    HORON_CHECK(batch().send_counts[me] == batch().receive_counts[me],
                "what a rank sends itself must be what it gets");
    for (size_t member = 0; member < me; ++member) {
      own_from_ += batch().send_counts[member];
      own_to_ += batch().receive_counts[member];
    }
    set_prepare_count(batch().send_counts[me]);
  }

 private:
  static constexpr uint64_t kTags = MpiMessages::kFirstTagBeside;  // above: the other users' tags

  int64_t bytes_of(int64_t elements) const {
    return elements * static_cast<int64_t>(size_of(batch().dtype));
  }

  void prepare(int64_t begin, int64_t count) override {
    core::copy_bytes(batch().output + bytes_of(own_to_ + begin),
                     batch().input + bytes_of(own_from_ + begin),
                     static_cast<size_t>(bytes_of(count)));
  }

  // Calls visit(member, address, elements) for all pieces. Each rank begins with the next member,
  // so that not all ranks send to the same one first.
  template <class Visit>
  void for_each_message(const core::BlockCounts& counts, const std::byte* memory,
                        const Visit& visit) const {
    std::vector<int64_t> begins(counts.size());
    for (size_t m = 1; m < counts.size(); ++m) begins[m] = begins[m - 1] + counts[m - 1];
    for (int step = 1; step < channel().size(); ++step) {
      const int member = (channel().rank() + step) % channel().size();
      const auto m = static_cast<size_t>(member);
      for_each_piece(counts[m], [&](int64_t begin, int count) {
        visit(member, memory + bytes_of(begins[m] + begin), count);
      });
    }
  }

  void post() override {
    const MPI_Datatype type = mpi_datatype(batch().dtype);
    const MPI_Comm communicator = channel().communicator();
    for_each_message(batch().receive_counts, batch().output,
                     [&](int from, const std::byte* place, int count) {
                       core::check_mpi(MPI_Irecv(const_cast<std::byte*>(place), count, type, from,
                                                 tag_, communicator, add_request()),
                                       "MPI_Irecv");
                     });
    for_each_message(
        batch().send_counts, batch().input, [&](int to, const std::byte* place, int count) {
          core::check_mpi(MPI_Isend(place, count, type, to, tag_, communicator, add_request()),
                          "MPI_Isend");
        });
  }

  const int tag_;
  int64_t own_from_ = 0;
  int64_t own_to_ = 0;
};

}  // namespace

MpiExchange::MpiExchange(std::shared_ptr<MpiChannel> channel, CollectiveKind kind)
    : channel_(std::move(channel)), kind_(kind) {}

std::string_view MpiExchange::name() const {
  switch (kind_) {
    case CollectiveKind::Gather:
      return "mpi_gather";
    case CollectiveKind::Scatter:
      return "mpi_scatter";
    default:
      return "mpi_alltoall";
  }
}

std::string MpiExchange::refusal(const core::BatchFacts& facts) const {
  return host_refusal(facts, kind_);
}

std::unique_ptr<core::InFlight> MpiExchange::start(core::Batch batch) {
  return std::make_unique<InFlightExchange>(channel_, std::move(batch));
}

}  // namespace horon::ops
