#include "horon/tests/support/simulation/random_world.h"

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <utility>

#include "horon/core/base/text.h"
#include "horon/tests/support/simulation/check_outcomes.h"
#include "horon/tests/support/simulation/random_spec.h"

namespace horon::simulation {
namespace {

using core::concat;

// What may happen in a world; drawn once, so that most worlds show few things at a time.
struct Traits {
  bool own_order, uneven, missing, absent, refuse, mismatch, duplicates, reshape, joins, leaves;
  bool thinks;
};

class Author {
 public:
  explicit Author(uint64_t seed)
      : random_(seed), gate_random_(~seed), eager_(std::mt19937_64(seed + 1)() % 2 == 0) {}

  World write() {
    World world;
    const int size = chance(3) ? 1 : static_cast<int>(2 + below(5));
    set_options(world);
    set_names(world, size);
    write_programs(world);
    set_faults(world, size);
    return world;
  }

  World write_set(const std::vector<int>& ranks, uint32_t set) {
    World world;
    set_options(world);
    names_ = ranks;
    world.cluster.controller.ranks = ranks;
    world.cluster.controller.set = set;
    write_programs(world);
    return world;
  }

 private:
  void write_programs(World& world) {
    traits_ = {chance(80), chance(25), chance(12), chance(25), chance(15), chance(20),
               chance(12), chance(25), chance(30), chance(50), chance(60)};
    entries_ = 1 + below(8);
    steps_ = 1 + below(4);
    set_gate(world);
    for (size_t i = 0; i < entries_; ++i) {
      base_.push_back(random_spec(random_, concat("t", i), names_));
      if (entries_can_fuse_) base_.back() = plain_spec();
      other_.push_back(random_change(random_, base_.back(), names_));
    }
    // Of no effect on one host.
    world.cluster.controller.eager = eager_;
    const size_t phases = traits_.joins ? 1 + below(2) : 1;
    for (size_t i = 0; i < names_.size(); ++i) world.programs.push_back(program(phases));
    if (!world.cluster.gate) return;
    submit_in_turns(world);
    world.cluster.controller.host_of = random_hosts(gate_random_, names_.size());
  }

  uint64_t below(uint64_t limit) { return random_() % limit; }
  bool chance(uint64_t percent) { return below(100) < percent; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return *(values.begin() + below(values.size()));
  }

  void set_options(World& world) {
    core::Controller::Options& options = world.cluster.controller;
    options.fusion_bytes_max = pick<int64_t>({1, 100, 4096, 64 << 20});
    options.alone_bytes = pick<int64_t>({0, 64, 1024, 256 << 10});
    options.batches_in_flight_max = pick({1, 2, 5});
    world.timing.seed = random_();
    world.timing.latency_max = pick({kMillisecond / 100, kMillisecond, 100 * kMillisecond});
    world.timing.batch_max = pick({kMillisecond / 100, kMillisecond, 100 * kMillisecond});
  }

  // Drawn from a generator of its own: a job is the same with and without a gate, except for more
  // steps.
  void set_gate(World& world) {
    const auto draw = [this](uint64_t limit) { return gate_random_() % limit; };
    world.cluster.gate = draw(2) == 0;
    if (!world.cluster.gate) return;
    core::Controller::Options& options = world.cluster.controller;
    options.freeze_after = static_cast<int>(1 + draw(3));
    options.thaw_after = draw(2) == 0 ? kMillisecond : kSecond;
    if (draw(3) == 0) options.alone_bytes = 0;  // nothing fuses
    if (draw(3) > 0) steps_ += draw(12);
    entries_can_fuse_ = draw(2) == 0;
    if (entries_can_fuse_) options.alone_bytes = 1024;
    rows_stay_ = draw(2) == 0;
    // Fewer places than names, and other names in the second half.
    moves_on_ = draw(3) == 0;
    if (!moves_on_) return;
    options.frozen_max = 1 + draw(2);
    steps_ += 8;
  }

  // Some ranks submit several entries before the library does anything, so that what is frozen
  // fuses.
  void submit_in_turns(World& world) {
    for (Program& program : world.programs) {
      const uint64_t percent = 50 * (gate_random_() % 3);
      for (size_t i = 1; i < program.size(); ++i) {
        const bool both = program[i - 1].kind == Action::Kind::Submit &&
                          program[i].kind == Action::Kind::Submit &&
                          program[i - 1].name != program[i].name;
        if (both && gate_random_() % 100 < percent) program[i].same_breath = true;
      }
    }
  }

  // Some jobs are process sets of a larger world.
  void set_names(World& world, int size) {
    const bool is_set = chance(30);
    int next = is_set ? static_cast<int>(below(3)) : 0;
    for (int rank = 0; rank < size; ++rank) {
      names_.push_back(next);
      next += is_set ? static_cast<int>(1 + below(3)) : 1;
    }
    if (!is_set) return;
    world.cluster.controller.ranks = names_;
    world.cluster.controller.set = static_cast<uint32_t>(1 + below(1000));
  }

  void set_faults(World& world, int size) {
    if (size < 2) return;
    const uint64_t dice = below(100);
    if (dice >= 29) return;
    if (dice >= 24) return corrupt(world);
    // A fault may come at any time, so also at the very end.
    const bool early = chance(traits_.leaves ? 15 : 40);
    const Course course = early ? Course{} : course_of(world);
    const Nanos end = early ? 20 * kMillisecond : course.end;
    if (dice < 5) {
      Fault short_stop = random_fault(size, end);
      short_stop.kind = Fault::Kind::Freeze;
      short_stop.duration = static_cast<Nanos>(1 + below(8000)) * kMillisecond;  // and all is well
      world.timing.faults = {short_stop};
      return;
    }
    std::vector<Fault>& faults = world.timing.faults;
    faults.push_back(random_fault(size, end));
    // Often when all have called shutdown() and the last batches run.
    if (course.batches_end > course.shutdown && chance(80)) {
      faults[0].at =
          course.shutdown +
          static_cast<Nanos>(below(static_cast<uint64_t>(course.batches_end - course.shutdown)));
    }
    if (!chance(35)) return;
    Fault second = random_fault(size, end);
    if (chance(50)) second.at = faults[0].at + static_cast<Nanos>(below(3)) * kMillisecond;
    // A rank that fails may die while it tells the others why.
    const bool dies_telling = faults[0].kind == Fault::Kind::Fail;
    if (dies_telling && chance(50)) {
      second.kind = Fault::Kind::DieSending;
      second.rank = faults[0].rank;
      second.at = faults[0].at;
    } else if (second.rank == faults[0].rank) {
      second.rank = (second.rank + 1) % size;
    }
    faults.push_back(second);
  }

  // A fault that the job does not survive, unless no rank needs the culprit any more.
  Fault random_fault(int size, Nanos end) {
    Fault fault;
    fault.kind = pick({Fault::Kind::Freeze, Fault::Kind::Die, Fault::Kind::Die,
                       Fault::Kind::DieSending, Fault::Kind::DieSending, Fault::Kind::Fail});
    fault.rank = static_cast<int>(below(static_cast<uint64_t>(size)));
    // Mostly the coordinator sends to several ranks at once.
    if (fault.kind == Fault::Kind::DieSending && chance(70)) fault.rank = 0;
    fault.at = static_cast<Nanos>(below(static_cast<uint64_t>(end) + 1));
    fault.duration = 30 * kSecond;
    fault.sent = below(static_cast<uint64_t>(size) - 1);
    return fault;
  }

  // When things last happen in a run without a fault.
  struct Course {
    Nanos end = 0;
    Nanos shutdown = 0;
    Nanos batches_end = 0;
  };
  static Course course_of(const World& world) {
    SimulatedCluster cluster(world.cluster, world.programs);
    TimedRun run(cluster, world.timing);
    run.run();
    return {run.last_progress(), run.last_shutdown(), run.last_batch_end()};
  }

  void corrupt(World& world) {
    world.corrupted = true;
    auto countdown = std::make_shared<uint64_t>(below(20));
    auto random = std::make_shared<std::mt19937_64>(random_());
    world.cluster.corrupt = [countdown, random](int, int, SimulatedCluster::Bytes& bytes) {
      if ((*countdown)-- != 0 || bytes.empty()) return;
      if ((*random)() % 4 == 0) bytes.resize((*random)() % bytes.size());
      for (uint64_t i = 0; i <= (*random)() % 3 && !bytes.empty(); ++i) {
        bytes[(*random)() % bytes.size()] ^= static_cast<std::byte>(1 << (*random)() % 8);
      }
    };
  }

  Program program(size_t phases) {
    Program out;
    pending_.clear();
    specs_.clear();
    own_rows_.clear();
    for (size_t phase = 0; phase < phases; ++phase) {
      const size_t steps = traits_.uneven || traits_.joins ? below(steps_ + 1) : steps_;
      for (size_t step = 0; step < steps; ++step) add_step(out, step);
      if (traits_.joins && chance(85)) add_join(out);
    }
    if (traits_.leaves && chance(90)) {
      if (traits_.joins && chance(15)) out.push_back(join());  // and leaves before it returns
      out.push_back(shutdown());
      if (chance(10)) out.push_back(submit("t0", spec(0, false)));
    }
    out.push_back(wait_all());
    return out;
  }

  void add_step(Program& out, size_t step) {
    std::vector<size_t> order(entries_);
    for (size_t i = 0; i < entries_; ++i) order[i] = i;
    if (traits_.own_order) std::shuffle(order.begin(), order.end(), random_);
    for (const size_t entry : order) {
      if (moves_on_ && (entry % 2 == 0) != (step < steps_ / 2)) continue;
      if (traits_.thinks && chance(20)) out.push_back(think(think_time()));
      if (traits_.missing && chance(5)) continue;
      add_call(out, entry, step);
      if (chance(10)) add_wait(out, concat("t", entry));
    }
    if (!chance(traits_.leaves ? 40 : 70)) return;
    out.push_back(wait_all());
    pending_.clear();
  }

  Nanos think_time() {
    return static_cast<Nanos>(below(pick<uint64_t>({1, 10, 1000}) * 1000)) * 1000;
  }

  void add_wait(Program& out, const std::string& name) {
    if (pending_.erase(name) > 0) out.push_back(wait(name));
  }

  void add_call(Program& out, size_t entry, size_t step) {
    const std::string name = concat("t", entry);
    // A program may use a name again only after it has waited for it.
    add_wait(out, name);
    if (traits_.refuse && chance(10)) {
      out.push_back(refuse(name));
      if (chance(30)) out.push_back(refuse(name));
      if (!chance(30)) return;
    }
    core::SpecPtr chosen = spec(entry, traits_.reshape && step >= 2);
    if (traits_.mismatch && chance(8)) chosen = random_change(random_, chosen, names_);
    std::vector<bool> absent;
    if (traits_.absent && chance(60)) {
      for (size_t part = 0; part < chosen->parts.size(); ++part) absent.push_back(chance(70));
    }
    out.push_back(submit(name, chosen, absent));
    pending_.insert(name);
    if (traits_.duplicates && chance(15)) out.push_back(in_same_breath(submit(name, chosen)));
  }

  // Some programs keep the spec of a tensor, some make it anew.
  core::SpecPtr spec(size_t entry, bool changed) {
    core::SpecPtr& kept = specs_[{entry, changed}];
    if (kept == nullptr || chance(20)) {
      kept = std::make_shared<core::EntrySpec>(changed ? *other_[entry] : *base_[entry]);
    }
    if (!core::has_own_rows(kept->kind)) return kept;
    auto own = std::make_shared<core::EntrySpec>(*kept);
    for (core::TensorPart& part : own->parts) part.shape[0] = static_cast<int64_t>(below(4));
    if (!rows_stay_) return own;
    core::SpecPtr& latest = own_rows_[{entry, changed}];
    if (latest == nullptr || gate_random_() % 16 == 0) latest = own;
    return gate_random_() % 2 == 0 ? latest : std::make_shared<core::EntrySpec>(*latest);
  }

  void add_join(Program& out) {
    out.push_back(join());
    if (chance(10)) out.push_back(in_same_breath(submit("t0", spec(0, false))));
    out.push_back(wait_all());
    pending_.clear();
  }

  std::mt19937_64 random_;
  std::mt19937_64 gate_random_;
  const bool eager_;
  std::vector<int> names_;
  Traits traits_{};
  size_t entries_ = 0;
  size_t steps_ = 0;
  bool entries_can_fuse_ = false;
  bool rows_stay_ = false;  // mostly
  bool moves_on_ = false;
  std::vector<core::SpecPtr> base_;
  std::vector<core::SpecPtr> other_;  // after a change on all ranks
  std::map<std::pair<size_t, bool>, core::SpecPtr> specs_;
  std::map<std::pair<size_t, bool>, core::SpecPtr> own_rows_;  // of this rank, if they stay
  std::set<std::string> pending_;
};

// The faults that took place and that a job need not survive, as the other ranks must report them.
std::vector<CauseOfEnd> causes_of_end(const World& world, const SimulatedCluster& cluster) {
  std::vector<CauseOfEnd> causes;
  for (const Fault& fault : world.timing.faults) {
    const bool happened = fault.kind != Fault::Kind::DieSending || cluster.rank(fault.rank).dead;
    if (!happened || (fault.kind == Fault::Kind::Freeze && fault.duration < 10 * kSecond)) continue;
    if (fault.kind == Fault::Kind::Fail) {
      causes.push_back({fault.rank, ErrorCode::OperationFailed, "the disk is full", false});
    } else {
      causes.push_back({fault.rank, ErrorCode::PeerDead,
                        concat("rank ", cluster.name_of(fault.rank), " has not answered for 10 s"),
                        fault.kind == Fault::Kind::DieSending});
    }
  }
  return causes;
}

// With damaged bytes all violations are forgiven, but the run must come to its end.
std::vector<std::string> judge(const World& world, const SimulatedCluster& cluster,
                               const TimedRun& run) {
  if (world.corrupted) return {};
  const std::vector<CauseOfEnd> causes = causes_of_end(world, cluster);
  if (causes.empty())
    return check_outcomes(cluster, expected_outcomes(world.programs, cluster.names()));
  std::vector<std::string> wrong = check_common_end(cluster, causes);
  // For each fault: a second until a rank asks, ten until the answer is overdue, and the interval
  // of the ticks. With a second fault, the rank that could ask may itself stand still.
  Nanos limit = 13 * kSecond * static_cast<Nanos>(causes.size());
  for (const Fault& fault : world.timing.faults) {
    if (causes.size() > 1 && fault.kind == Fault::Kind::Freeze) limit += fault.duration;
  }
  if (run.silence_before_fatal() > limit) {
    wrong.push_back(concat("the end came only after ", run.silence_before_fatal() / kSecond, " s"));
  }
  return wrong;
}

std::map<std::string, int> count(const World& world, const SimulatedCluster& cluster,
                                 const TimedRun& run) {
  std::map<std::string, int> seen;
  count_outcomes(cluster, seen);
  seen["fault while the last batches run"] = run.faults_at_the_end();
  for (const Fault& fault : world.timing.faults) {
    const bool sending = fault.kind == Fault::Kind::DieSending;
    if (sending && cluster.rank(fault.rank).dead) ++seen["died while sending"];
    if (!sending && fault.at > 20 * kMillisecond) ++seen["late fault"];
  }
  if (causes_of_end(world, cluster).size() > 1) ++seen["two faults"];
  if (!world.cluster.controller.ranks.empty()) ++seen["process set"];
  return seen;
}

}  // namespace

World random_world(uint64_t seed) { return Author(seed).write(); }

World random_set(uint64_t seed, const std::vector<int>& ranks, uint32_t set) {
  return Author(seed).write_set(ranks, set);
}

Report run_world(const World& world) {
  SimulatedCluster cluster(world.cluster, world.programs);
  TimedRun run(cluster, world.timing);
  run.run();
  Report report;
  report.wrong = judge(world, cluster, run);
  report.seen = count(world, cluster, run);
  bool rest = world.timing.faults.empty() && !world.corrupted;
  for (int rank = 0; rank < cluster.size(); ++rank) {
    const SimulatedCluster::Rank& r = cluster.rank(rank);
    rest = rest && r.controller->at_rest() && r.leaving == r.bye;
  }
  if (rest && run.rest(30 * kSecond) > 0) report.wrong.push_back("something was said at rest");
  if (!world.cluster.trace) return report;
  report.trace = describe(world.programs);
  for (const std::string& line : cluster.take_trace()) report.trace += line + "\n";
  return report;
}

}  // namespace horon::simulation
