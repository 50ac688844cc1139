// Graphs of the CUDA made of threads: what is captured in its streams, with who waits for whom.
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
  // Nodes: what happens behind all of them happens behind this point.
  using Point = std::set<size_t>;

  // A kernel behind `after`. Returns the point behind it.
  Point add(std::function<bool()> kernel, const Point& after);
  // What breaks a capture on a GPU. The first one is kept.
  void fail(const std::string& fault);
  // Nothing is added any more. `last`: of the stream where the capture has begun. Throws Error if
  // something has broken it, or if the stream does not wait for all that was captured.
  void end(const Point& last);
  bool has_ended() const;
  size_t nodes() const;

  // A kernel that runs all nodes once, each behind those that it waits for, and those that wait for
  // nothing in any order. As HostCuda::enqueue() asks for it, again and again until it says true.
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
