// Graphs of HostCuda: the kernels that are captured in its streams, and which of them waits for
// which.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace horon::test {

// After end(): any number of launches, one at a time.
class HostGraph {
 public:
  // A set of nodes. What happens after all of them happens after this point.
  using Point = std::set<size_t>;

  // Adds a kernel that runs after the point `after`. Returns the point after the kernel.
  Point add(std::function<bool()> kernel, const Point& after);
  // Notes a fault that would break the capture on a GPU. The first one is kept.
  void fail(const std::string& fault);
  // Ends the capture. `last`: the point of the stream in which it has begun. Throws Error if
  // something has broken the capture, or if that stream does not wait for all that was captured.
  void end(const Point& last);
  bool has_ended() const;
  size_t nodes() const;

  // Returns a kernel for HostCuda::enqueue(), to be called again and again until it returns true.
  // It runs all nodes once, each after the nodes that it waits for, and otherwise in random order.
  static std::function<bool()> one_launch(std::shared_ptr<HostGraph> graph, unsigned seed);

 private:
  struct Node {
    std::function<bool()> kernel;
    Point after;
  };
  bool run_some(std::vector<bool>& done, std::mt19937& random);

  mutable std::mutex mutex_;
  std::vector<Node> nodes_;
  std::string fault_;
  bool has_ended_ = false;
};

}  // namespace horon::test
