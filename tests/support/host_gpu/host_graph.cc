#include "horon/tests/support/host_gpu/host_graph.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::test {

HostGraph::Point HostGraph::add(std::function<bool()> kernel, const Point& after) {
  const std::lock_guard lock(mutex_);
  nodes_.push_back({std::move(kernel), after});
  return {nodes_.size() - 1};
}

void HostGraph::fail(const std::string& fault) {
  const std::lock_guard lock(mutex_);
  if (fault_.empty()) fault_ = fault;
}

void HostGraph::end(const Point& last) {
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  if (!fault_.empty()) throw Error(ErrorCode::OperationFailed, "the capture is broken: " + fault_);
  std::vector<bool> reached(nodes_.size());
  for (const size_t node : last) reached[node] = true;
  for (size_t node = nodes_.size(); node-- > 0;) {
    if (!reached[node]) {
      throw Error(ErrorCode::OperationFailed,
                  core::concat("the capture has work that is not joined: node ", node, " of ",
                               nodes_.size()));
    }
    for (const size_t before : nodes_[node].after) reached[before] = true;
  }
}

bool HostGraph::has_ended() const {
  const std::lock_guard lock(mutex_);
  return has_ended_;
}

size_t HostGraph::nodes() const {
  const std::lock_guard lock(mutex_);
  return nodes_.size();
}

std::function<bool()> HostGraph::one_launch(std::shared_ptr<HostGraph> graph, unsigned seed) {
  struct Launch {
    std::vector<bool> done;
    std::mt19937 random;
  };
  const auto launch = std::make_shared<Launch>();
  launch->done.resize(graph->nodes());
  launch->random.seed(seed);
  return
      [graph = std::move(graph), launch] { return graph->run_some(launch->done, launch->random); };
}

// Calls once the kernel of each node that may run.
bool HostGraph::run_some(std::vector<bool>& done, std::mt19937& random) {
  std::vector<size_t> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t node : order) {
    const bool may_run = std::all_of(nodes_[node].after.begin(), nodes_[node].after.end(),
                                     [&](size_t before) { return done[before]; });
    if (!done[node] && may_run) done[node] = nodes_[node].kernel();
  }
  return std::all_of(done.begin(), done.end(), [](bool is_done) { return is_done; });
}

}  // namespace horon::test
