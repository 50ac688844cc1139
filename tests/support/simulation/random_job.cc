#include "horon/tests/support/simulation/random_job.h"

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <set>
#include <utility>

#include "horon/core/base/text.h"
#include "horon/tests/support/simulation/check_outcomes.h"

namespace horon::simulation {
namespace {

using core::concat;

const std::vector<int>& members_of(const World& set) { return set.cluster.controller.ranks; }

// The place of the rank in the set; -1: it is no member.
int index_in(const World& set, int rank) {
  const std::vector<int>& members = members_of(set);
  const auto place = std::find(members.begin(), members.end(), rank);
  return place == members.end() ? -1 : static_cast<int>(place - members.begin());
}

bool strikes_one_set(const Fault& fault) {
  return fault.kind == Fault::Kind::Fail || fault.kind == Fault::Kind::DieSending;
}

// Runs all sets of a job under one clock.
class JobRun {
 public:
  explicit JobRun(const Job& job) : job_(job) {
    for (size_t set = 0; set < job.sets.size(); ++set) {
      const World& world = job.sets[set];
      TimedRun::Options timing = world.timing;
      timing.faults = faults_of(set);
      SimulatedCluster::Options options = world.cluster;
      options.trace = job.trace;
      clusters_.push_back(std::make_unique<SimulatedCluster>(options, world.programs));
      runs_.push_back(std::make_unique<TimedRun>(*clusters_.back(), timing));
    }
  }

  void run() {
    for (;;) {
      const auto next = std::min_element(
          runs_.begin(), runs_.end(),
          [](const auto& a, const auto& b) { return a->next_time() < b->next_time(); });
      const auto over = [](const auto& run) { return run->over(); };
      if (over(*next) && std::all_of(runs_.begin(), runs_.end(), over)) return;
      (*next)->step();
      now_ = (*next)->now();
      settle(static_cast<size_t>(next - runs_.begin()));
    }
  }

  const SimulatedCluster& cluster(size_t set) const { return *clusters_[set]; }
  const SimulatedCluster::Rank& rank(size_t set, int rank) const {
    return clusters_[set]->rank(index_in(job_.sets[set], rank));
  }
  bool has(size_t set, int rank) const { return index_in(job_.sets[set], rank) >= 0; }
  // When something last happened in any set.
  Nanos last_progress() const { return last_progress_; }
  // For how long nothing had happened in any set when the first rank ended by an error; else 0.
  Nanos silence_before_fatal() const { return silence_; }
  const std::string& trace() const { return trace_; }

 private:
  std::vector<Fault> faults_of(size_t set) const {
    std::vector<Fault> faults;
    for (const JobFault& each : job_.faults) {
      Fault fault = each.fault;
      fault.rank = index_in(job_.sets[set], each.fault.rank);
      if (fault.rank < 0 || (strikes_one_set(fault) && each.set != set)) continue;
      faults.push_back(fault);
    }
    return faults;
  }

  // After an event of this set: a process that has died there is gone everywhere, and the first
  // error that ends a rank is told to its other sets.
  void settle(size_t set) {
    for (const std::string& line : clusters_[set]->take_trace()) {
      trace_ += concat("set ", set, ": ", line, "\n");
    }
    const std::vector<int>& members = members_of(job_.sets[set]);
    for (size_t i = 0; i < members.size(); ++i) {
      const SimulatedCluster::Rank& here = clusters_[set]->rank(static_cast<int>(i));
      if (here.dead) die(members[i]);
      if (here.fatal && told_.insert(members[i]).second) {
        if (!std::exchange(ended_, true)) silence_ = now_ - last_progress_;
        if (job_.errors_spread) fail(members[i], set, *here.fatal);
      }
    }
    uint64_t progress = 0;
    for (const auto& cluster : clusters_) progress += cluster->progress();
    if (std::exchange(progress_, progress) != progress) last_progress_ = now_;
  }

  void die(int rank) {
    for (size_t set = 0; set < runs_.size(); ++set) {
      const int index = index_in(job_.sets[set], rank);
      if (index >= 0 && !clusters_[set]->rank(index).dead) runs_[set]->die(index, now_);
    }
  }

  void fail(int rank, size_t but, const Error& error) {
    for (size_t set = 0; set < runs_.size(); ++set) {
      const int index = index_in(job_.sets[set], rank);
      if (index >= 0 && set != but) runs_[set]->fail(index, error, now_);
    }
  }

  const Job& job_;
  std::vector<std::unique_ptr<SimulatedCluster>> clusters_;
  std::vector<std::unique_ptr<TimedRun>> runs_;
  std::set<int> told_;  // ranks whose first error has been told to their other sets
  Nanos now_ = 0;
  uint64_t progress_ = 0;
  Nanos last_progress_ = 0;
  bool ended_ = false;
  Nanos silence_ = 0;
  std::string trace_;
};

// Draws a job.
class JobAuthor {
 public:
  explicit JobAuthor(uint64_t seed) : random_(seed) {}

  Job write() {
    Job job;
    job.size = static_cast<int>(2 + below(5));
    const size_t sets = 1 + below(3);
    for (size_t set = 0; set <= sets; ++set) {
      job.sets.push_back(
          random_set(random_(), draw_members(job.size, set == 0), static_cast<uint32_t>(set)));
    }
    if (below(100) < 60) add_faults(job);
    return job;
  }

 private:
  uint64_t below(uint64_t limit) { return random_() % limit; }

  std::vector<int> draw_members(int size, bool all) {
    std::vector<int> members;
    for (int rank = 0; rank < size; ++rank) {
      if (all || below(100) < 60) members.push_back(rank);
    }
    if (members.empty()) members.push_back(static_cast<int>(below(static_cast<uint64_t>(size))));
    return members;
  }

  void add_faults(Job& job) {
    JobRun healthy(job);
    healthy.run();
    const Nanos end = below(3) == 0 ? 20 * kMillisecond : healthy.last_progress();
    const size_t count = below(100) < 30 ? 2 : 1;
    for (size_t i = 0; i < count; ++i) job.faults.push_back(draw_fault(job, end));
  }

  JobFault draw_fault(const Job& job, Nanos end) {
    constexpr std::array kinds = {Fault::Kind::Freeze, Fault::Kind::Die, Fault::Kind::DieSending,
                                  Fault::Kind::Fail};
    JobFault out;
    out.set = below(job.sets.size());
    const std::vector<int>& members = members_of(job.sets[out.set]);
    out.fault.kind = kinds.at(below(kinds.size()));
    out.fault.rank = members[below(members.size())];
    out.fault.at = static_cast<Nanos>(below(static_cast<uint64_t>(end) + 1));
    out.fault.sent = below(members.size());
    // Half of them are short enough to be forgiven.
    out.fault.duration = below(2) == 0 ? 30 * kSecond : static_cast<Nanos>(below(8 * kSecond));
    return out;
  }

  std::mt19937_64 random_;
};

// The faults that took place and that the job need not survive; each culprit is a rank of the job.
std::vector<CauseOfEnd> causes_of_end(const Job& job, const JobRun& run) {
  std::vector<CauseOfEnd> causes;
  for (const JobFault& each : job.faults) {
    const Fault& fault = each.fault;
    const bool sending = fault.kind == Fault::Kind::DieSending;
    if (sending && !run.rank(0, fault.rank).dead) continue;
    if (fault.kind == Fault::Kind::Freeze && fault.duration < 10 * kSecond) continue;
    // Nothing can fail in a set that has had its Bye.
    const SimulatedCluster::Rank& culprit = run.rank(each.set, fault.rank);
    if (fault.kind == Fault::Kind::Fail && culprit.bye && !culprit.fatal) continue;
    if (fault.kind == Fault::Kind::Fail) {
      causes.push_back({fault.rank, ErrorCode::OperationFailed, "the disk is full", false});
    } else {
      causes.push_back({fault.rank, ErrorCode::PeerDead,
                        concat("rank ", fault.rank, " has not answered for 10 s"), sending});
    }
  }
  return causes;
}

class JobJudge {
 public:
  JobJudge(const Job& job, const JobRun& run)
      : job_(job), run_(run), causes_(causes_of_end(job, run)) {}

  Report judge() {
    for (size_t set = 0; set < job_.sets.size(); ++set) judge_set(set);
    for (int rank = 0; rank < job_.size; ++rank) judge_rank(rank);
    // A second until a rank asks, ten until the answer is overdue, and the interval of the ticks.
    // With a second fault, the rank that could ask may itself stand still.
    Nanos limit = 13 * kSecond * static_cast<Nanos>(causes_.size());
    for (const JobFault& each : job_.faults) {
      const bool still = each.fault.kind == Fault::Kind::Freeze;
      if (still && job_.faults.size() > 1) limit += each.fault.duration;
    }
    if (run_.silence_before_fatal() > limit) {
      wrong("the end came only after ", run_.silence_before_fatal() / kSecond, " s");
    }
    return std::move(report_);
  }

 private:
  template <class... Args>
  void wrong(const Args&... args) {
    report_.wrong.push_back(concat(args...));
  }

  void judge_set(size_t set) {
    const World& world = job_.sets[set];
    const SimulatedCluster& cluster = run_.cluster(set);
    count_outcomes(cluster, report_.seen);
    bool ended = false;
    for (int index = 0; index < cluster.size(); ++index) {
      ended = ended || cluster.rank(index).fatal.has_value();
    }
    std::vector<CauseOfEnd> causes = causes_;
    bool has_culprit = false;
    for (CauseOfEnd& cause : causes) {
      cause.culprit = index_in(world, cause.culprit);
      has_culprit = has_culprit || cause.culprit >= 0;
    }
    if (ended && !has_culprit) ++report_.seen["ended by another set"];
    if (!ended && !causes.empty()) {
      ++report_.seen[has_culprit ? "nobody needed the culprit" : "no part in the fault"];
    }
    const std::vector<std::string> found =
        ended || has_culprit
            ? check_common_end(cluster, causes)
            : check_outcomes(cluster, expected_outcomes(world.programs, cluster.names()));
    for (const std::string& text : found) wrong("set ", set, ": ", text);
  }

  // A rank that lives and has ended in one set has ended in all, or has had the Bye there.
  void judge_rank(int rank) {
    const bool culprit =
        std::any_of(causes_.begin(), causes_.end(),
                    [rank](const CauseOfEnd& cause) { return cause.culprit == rank; });
    bool ended = false;
    for (size_t set = 0; set < job_.sets.size(); ++set) {
      ended = ended || (run_.has(set, rank) && run_.rank(set, rank).fatal);
    }
    if (culprit || !ended) return;
    for (size_t set = 0; set < job_.sets.size(); ++set) {
      if (!run_.has(set, rank)) continue;
      const SimulatedCluster::Rank& here = run_.rank(set, rank);
      if (!here.fatal && !here.bye) wrong("rank ", rank, " has ended, but not in set ", set);
    }
  }

  const Job& job_;
  const JobRun& run_;
  const std::vector<CauseOfEnd> causes_;
  Report report_;
};

}  // namespace

Job random_job(uint64_t seed) { return JobAuthor(seed).write(); }

Report run_job(const Job& job) {
  JobRun run(job);
  run.run();
  Report report = JobJudge(job, run).judge();
  if (!job.trace) return report;
  for (size_t set = 0; set < job.sets.size(); ++set) {
    report.trace += concat("set ", set, " of ranks ", core::list_ranks(members_of(job.sets[set])),
                           ":\n", describe(job.sets[set].programs));
  }
  report.trace += run.trace();
  return report;
}

}  // namespace horon::simulation
