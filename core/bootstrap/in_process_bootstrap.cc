#include "horon/core/bootstrap/in_process_bootstrap.h"

#include <algorithm>
#include <utility>

namespace horon::core {

class InProcessJob::Rank final : public Bootstrap {
 public:
  Rank(Topology topology, Meeting& job, Meeting& host)
      : topology_(std::move(topology)), job_(job), host_(host) {}

  const Topology& topology() const override { return topology_; }
  std::vector<std::string> allgather(Among among, std::string_view mine) const override {
    Meeting& meeting = among == Among::Job ? job_ : host_;
    const int index = among == Among::Job ? topology_.rank : topology_.local_rank;
    meeting.blocks[static_cast<size_t>(index)] = mine;
    meeting.barrier.arrive_and_wait();
    std::vector<std::string> all = meeting.blocks;
    meeting.barrier.arrive_and_wait();  // until all have read
    return all;
  }

 private:
  const Topology topology_;
  Meeting& job_;
  Meeting& host_;
};

InProcessJob::InProcessJob(int size) : InProcessJob(std::vector<int>(static_cast<size_t>(size))) {}

InProcessJob::InProcessJob(const std::vector<int>& host_key_of) : job_(host_key_of.size()) {
  for (int rank = 0; rank < static_cast<int>(host_key_of.size()); ++rank) {
    Topology topology = make_topology(rank, host_key_of);
    const auto host = static_cast<size_t>(topology.host_of[static_cast<size_t>(rank)]);
    if (host == hosts_.size()) {
      hosts_.push_back(std::make_unique<Meeting>(static_cast<size_t>(topology.local_size)));
    }
    ranks_.push_back(std::make_unique<Rank>(std::move(topology), job_, *hosts_[host]));
  }
}

}  // namespace horon::core
