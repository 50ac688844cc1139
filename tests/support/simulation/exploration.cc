#include "horon/tests/support/simulation/exploration.h"

#include <memory>
#include <unordered_set>
#include <utility>

#include "horon/core/base/text.h"
#include "horon/tests/support/simulation/check_outcomes.h"

namespace horon::simulation {
namespace {

using core::concat;

struct Step {
  enum class Kind : uint8_t { Act, Deliver, Finish, Append, Look };
  Kind kind;
  int rank;
  int from;
};

std::string describe(const Step& step) {
  switch (step.kind) {
    case Step::Kind::Act:
      return concat("act ", step.rank);
    case Step::Kind::Deliver:
      return concat("deliver ", step.from, " ", step.rank);
    case Step::Kind::Append:
      return concat("append of ", step.rank);
    case Step::Kind::Look:
      return concat("look ", step.rank);
    case Step::Kind::Finish:
      break;
  }
  return concat("finish ", step.rank);
}

class Explorer {
 public:
  Explorer(const SimulatedCluster::Options& options, const std::vector<Program>& programs,
           size_t states_max)
      : options_(options),
        programs_(programs),
        expected_(expected_outcomes(programs, SimulatedCluster(options, programs).names())),
        states_max_(states_max) {}

  ExplorationReport run() {
    visit(replay());
    return std::move(report_);
  }

 private:
  using Cluster = std::unique_ptr<SimulatedCluster>;

  static void apply(SimulatedCluster& cluster, const Step& step) {
    if (step.kind == Step::Kind::Act) cluster.act(step.rank);
    if (step.kind == Step::Kind::Deliver) cluster.deliver(step.from, step.rank);
    if (step.kind == Step::Kind::Finish) cluster.finish(step.rank);
    // Another process appends to the ring; this rank need not run for that.
    if (step.kind == Step::Kind::Append) return cluster.append(step.rank);
    cluster.flush(step.rank);
  }

  Cluster replay() const {
    auto cluster = std::make_unique<SimulatedCluster>(options_, programs_);
    for (const Step& step : path_) apply(*cluster, step);
    return cluster;
  }

  static std::vector<Step> possible_steps(const SimulatedCluster& cluster) {
    std::vector<Step> steps;
    for (int rank = 0; rank < cluster.size(); ++rank) {
      if (cluster.can_act(rank)) steps.push_back({Step::Kind::Act, rank, -1});
      if (cluster.can_append(rank)) steps.push_back({Step::Kind::Append, rank, -1});
      if (cluster.rank(rank).rung) steps.push_back({Step::Kind::Look, rank, -1});
      if (cluster.can_finish(rank)) steps.push_back({Step::Kind::Finish, rank, -1});
    }
    for (const auto& [ends, messages] : cluster.channels()) {
      steps.push_back({Step::Kind::Deliver, ends.second, ends.first});
    }
    return steps;
  }

  // What each rank has seen, in its order, and the ring: these alone decide the state of the job.
  std::string signature(const SimulatedCluster& cluster) const {
    std::vector<std::string> seen(programs_.size());
    for (const Step& step : path_) {
      if (step.kind == Step::Kind::Append) continue;  // the gate's history tells
      std::string& own = seen[static_cast<size_t>(step.rank)];
      own += static_cast<char>(step.kind);
      own += static_cast<char>(step.from);
    }
    std::string all = cluster.gate_history();
    for (const std::string& own : seen) all += own + '\x7f';
    return all;
  }

  void visit(Cluster cluster) {
    if (!report_.wrong.empty() || !report_.complete) return;
    if (!seen_.insert(signature(*cluster)).second) return;
    if (++report_.states >= states_max_) report_.complete = false;
    const std::vector<Step> steps = possible_steps(*cluster);
    if (steps.empty()) return judge(*cluster);
    for (const Step& step : steps) {
      // The first of the steps uses the cluster as it is, the others build it anew.
      if (cluster == nullptr) cluster = replay();
      apply(*cluster, step);
      path_.push_back(step);
      visit(std::move(cluster));
      cluster = nullptr;
      path_.pop_back();
    }
  }

  void judge(SimulatedCluster& cluster) {
    ++report_.ends;
    // Time enough for a stall report of what is left open; its text and questions are not explored.
    for (Nanos now = 0; now <= 30 * kSecond; now += kSecond) {
      for (int rank = 0; rank < cluster.size(); ++rank) {
        cluster.tick(rank, now);
        cluster.flush(rank);
        while (cluster.any_message()) {
          const auto [from, to] = cluster.channels().begin()->first;
          cluster.deliver(from, to);
          cluster.flush(to);
        }
      }
    }
    report_.wrong = check_outcomes(cluster, expected_);
    if (report_.wrong.empty()) return;
    std::string path = "after:";
    for (const Step& step : path_) path += concat(" ", describe(step), ";");
    report_.wrong.push_back(path);
  }

  const SimulatedCluster::Options options_;
  const std::vector<Program> programs_;
  const Expectation expected_;
  const size_t states_max_;
  std::vector<Step> path_;
  std::unordered_set<std::string> seen_;
  ExplorationReport report_;
};

}  // namespace

ExplorationReport explore(const SimulatedCluster::Options& options,
                          const std::vector<Program>& programs, size_t states_max) {
  return Explorer(options, programs, states_max).run();
}

}  // namespace horon::simulation
