#include "horon/tests/support/simulation/check_outcomes.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "horon/core/base/text.h"

namespace horon::simulation {
namespace {

using core::concat;

class Judge {
 public:
  Judge(const SimulatedCluster& cluster, const Expectation& expected)
      : cluster_(cluster), expected_(expected), wrong_(cluster.violations()) {}

  std::vector<std::string> judge() {
    for (int rank = 0; rank < cluster_.size(); ++rank) {
      judge_rank(rank);
      const SimulatedCluster::Rank& r = cluster_.rank(rank);
      for (size_t action = 0; action < r.outcomes.size(); ++action) judge_call(rank, action);
    }
    judge_log();
    judge_open();
    judge_stall();
    judge_away();
    return std::move(wrong_);
  }

 private:
  template <class... Args>
  void wrong(const Args&... args) {
    wrong_.push_back(concat(args...));
  }

  const std::vector<int>& names() const { return cluster_.names(); }

  void judge_rank(int rank) {
    const SimulatedCluster::Rank& r = cluster_.rank(rank);
    const auto place = static_cast<size_t>(rank);
    if (r.fatal) return wrong("rank ", rank, " ended: ", r.fatal->what());
    if (r.bye != expected_.bye) wrong("rank ", rank, expected_.bye ? " has no Bye" : " has a Bye");
    if ((r.position == r.program.size()) != expected_.done[place]) {
      wrong("rank ", rank, " stopped at action ", r.position, " of ", r.program.size());
    }
    if (r.finished != r.started) wrong("rank ", rank, " has a batch running");
    // The coordinator's own votes travel in no message, and a vote for a frozen entry is not sent.
    const Statistics statistics = r.controller->statistics();
    const int votes = r.votes_sent + static_cast<int>(statistics.frozen_starts);
    if (rank > 0 && votes != expected_.votes[place]) {
      wrong("rank ", rank, " gave ", votes, " votes, not ", expected_.votes[place]);
    }
    const Statistics first = cluster_.rank(0).controller->statistics();
    if (statistics.freezes != first.freezes || statistics.thaws != first.thaws ||
        statistics.frozen_starts != first.frozen_starts ||
        statistics.frozen_batches != first.frozen_batches ||
        (!expected_.bye && statistics.void_starts != first.void_starts)) {
      wrong("rank ", rank, " has seen the gate in another way than the coordinator");
    }
    if (rank > 0 && r.controller->member().applied() != r.records.size()) {
      wrong("rank ", rank, " has not applied what it got");
    }
    if (expected_.open.empty() && !r.controller->at_rest() && r.pending == 0) {
      wrong("rank ", rank, " is not at rest");
    }
  }

  bool same_data(const Outcome& a, const Outcome& b) {
    if (a.contributors != b.contributors || a.produced != b.produced || a.extents != b.extents) {
      return false;
    }
    // All ranks share both lists: compared once.
    if (equal_.contains({a.contributions, b.contributions})) return true;
    if (*a.contributions != *b.contributions) return false;
    equal_.emplace(a.contributions, b.contributions);
    return true;
  }

  void judge_call(int rank, size_t action) {
    const SimulatedCluster::Rank& r = cluster_.rank(rank);
    const Outcome& is = r.outcomes[action];
    const Outcome& should = expected_.outcomes[static_cast<size_t>(rank)][action];
    const bool same = is.kind == should.kind &&
                      (is.kind != Outcome::Kind::Failed || is.code == should.code) &&
                      (is.kind != Outcome::Kind::Ran || same_data(is, should));
    if (!same) {
      return wrong("rank ", rank, ", action ", action, " (", describe(r.program[action]),
                   "): ", describe(is), "; expected: ", describe(should));
    }
    if (is.kind == Outcome::Kind::Failed) judge_text(rank, action, is, should);
    if (is.kind == Outcome::Kind::Joined) judge_joined(rank, is, should.round);
  }

  void judge_text(int rank, size_t action, const Outcome& is, const Outcome& should) {
    const std::string& name = cluster_.rank(rank).program[action].name;
    if (is.text.find(concat("\"", name, "\"")) == std::string::npos) {
      wrong("rank ", rank, ": the error does not name ", name, ": ", is.text);
    }
    if (is.text.find(should.text) == std::string::npos) {
      wrong("rank ", rank, ": the error does not say \"", should.text, "\": ", is.text);
    }
    // Only one rank gets these errors.
    if (is.code == ErrorCode::DuplicateName || is.code == ErrorCode::NotInitialized) return;
    if (is.code == ErrorCode::InvalidArgument && is.text.find("join()") != std::string::npos)
      return;
    const auto [known, fresh] = texts_.try_emplace(should.round, is.text);
    if (!fresh && known->second != is.text) {
      wrong("rank ", rank, " has another error: ", is.text, " / ", known->second);
    }
  }

  void judge_joined(int rank, const Outcome& is, size_t round) {
    const std::vector<int>& joiners = expected_.joiners[round];
    const auto [known, fresh] = last_joined_.try_emplace(round, is.last_joined);
    const bool possible = std::any_of(joiners.begin(), joiners.end(), [&](int joiner) {
      return cluster_.name_of(joiner) == is.last_joined;
    });
    if (!possible || known->second != is.last_joined) {
      wrong("rank ", rank, " was told that rank ", is.last_joined, " joined last");
    }
  }

  void judge_log() {
    for (int rank = 1; rank < cluster_.size(); ++rank) {
      const SimulatedCluster::Rank& r = cluster_.rank(rank);
      const size_t records = r.records.size() - r.plans;
      if (records == expected_.records) continue;
      wrong("the log of rank ", rank, " has ", records, " records without its plans, not ",
            expected_.records);
    }
    for (int rank = 1; rank < cluster_.size(); ++rank) {
      if (cluster_.rank(rank).records != cluster_.rank(0).records) {
        wrong("rank ", rank, " has applied another log than the coordinator");
      }
    }
  }

  void judge_open() {
    const auto open = cluster_.rank(0).controller->coordinator()->open_entries();
    if (open.size() != expected_.open.size()) wrong("other entries are open than expected");
    for (const auto& [name, missing] : open) {
      const auto expected = expected_.open.find(name);
      if (expected == expected_.open.end() || expected->second.missing != missing) {
        wrong("\"", name, "\" is open and waits for rank ", core::list_ranks(missing),
              ", which is not expected");
      }
      if (missing.empty()) wrong("nobody is missing in ", name, ", yet it is open");
    }
  }

  // Long reports are cut after this many tensors.
  static constexpr size_t kTensorsToldMax = 10;

  void judge_stall() {
    const std::string& text = cluster_.rank(0).controller->stall_text();
    if (expected_.open.empty()) return;
    size_t told = 0;
    for (const auto& [name, entry] : expected_.open) {
      const std::string waits = concat("tensor \"", name, "\": waiting for ",
                                       ranks_text(entry.missing, names()), " for ");
      const size_t begin = text.find(waits);
      if (begin == std::string::npos) continue;
      ++told;
      const size_t end = text.find(")", begin);
      const std::string line = text.substr(begin, end - begin);
      std::string spoken;
      if (!entry.ready.empty()) spoken = concat("ready: ", ranks_text(entry.ready, names()));
      if (!entry.refused.empty()) {
        spoken +=
            concat(spoken.empty() ? "" : "; ", "refused on ", ranks_text(entry.refused, names()));
      }
      if (!line.ends_with(concat(" s (", spoken))) {
        wrong("the stall report does not say \"", spoken, "\" of \"", name, "\": ", line);
      }
    }
    size_t lines = 0;
    for (size_t at = text.find("waiting for"); at != std::string::npos;
         at = text.find("waiting for", at + 1)) {
      ++lines;
    }
    const size_t expected_lines = std::min(kTensorsToldMax, expected_.open.size());
    if (told != expected_lines || lines != expected_lines) {
      wrong("the stall report is not what is missing: ", text);
    }
    for (int rank = 1; rank < cluster_.size(); ++rank) {
      if (cluster_.rank(rank).controller->stall_text() != text) {
        wrong("rank ", rank, " has no stall report");
      }
    }
  }

  // The coordinator knows which ranks have left or joined; if nothing is open, all ranks are told.
  void judge_away() {
    const std::vector<int>& away = expected_.away;
    std::string expected;
    if (!away.empty() && away.size() < expected_.done.size()) {
      std::vector<int> here;
      for (int rank = 0; rank < cluster_.size(); ++rank) {
        if (std::find(away.begin(), away.end(), rank) == away.end()) here.push_back(rank);
      }
      expected = concat(ranks_text(away, names()),
                        " called shutdown() or join(); not yet: ", ranks_text(here, names()));
    }
    constexpr Nanos any_time = std::numeric_limits<Nanos>::max();
    const std::string known = cluster_.rank(0).controller->coordinator()->away_report(any_time, 0);
    if (known != expected) wrong("the coordinator knows: ", known, "; expected: ", expected);
    if (expected.empty() || !expected_.open.empty()) return;
    for (int rank = 0; rank < cluster_.size(); ++rank) {
      const std::string& own = cluster_.rank(rank).controller->stall_text();
      if (own.find(expected) == std::string::npos) {
        wrong("rank ", rank, " does not know who stays: ", own);
      }
    }
  }

  const SimulatedCluster& cluster_;
  const Expectation& expected_;
  std::vector<std::string> wrong_;
  std::map<size_t, std::string> texts_;
  std::map<size_t, int> last_joined_;
  using Data = std::shared_ptr<const std::vector<Contribution>>;
  std::set<std::pair<Data, Data>> equal_;
};

bool is_prefix(const std::vector<size_t>& a, const std::vector<size_t>& b) {
  return std::equal(a.begin(), a.begin() + static_cast<int64_t>(std::min(a.size(), b.size())),
                    b.begin());
}

}  // namespace

std::vector<std::string> check_outcomes(const SimulatedCluster& cluster,
                                        const Expectation& expected) {
  return Judge(cluster, expected).judge();
}

std::vector<std::string> check_common_end(const SimulatedCluster& cluster,
                                          const std::vector<CauseOfEnd>& causes) {
  std::vector<std::string> wrong = cluster.violations();
  const auto is_culprit = [&](int rank) {
    return std::any_of(causes.begin(), causes.end(),
                       [&](const CauseOfEnd& cause) { return cause.culprit == rank; });
  };
  const bool may_be_untold = std::any_of(
      causes.begin(), causes.end(), [](const CauseOfEnd& cause) { return cause.dies_telling; });
  bool needed = false;
  for (int rank = 0; rank < cluster.size(); ++rank) {
    const SimulatedCluster::Rank& r = cluster.rank(rank);
    needed = needed || (!is_culprit(rank) && (r.fatal || r.pending > 0 || r.leaving != r.bye));
  }
  std::string text;
  for (int rank = 0; rank < cluster.size(); ++rank) {
    const SimulatedCluster::Rank& r = cluster.rank(rank);
    if (!is_prefix(r.records, cluster.rank(0).records)) {
      wrong.push_back(concat("rank ", rank, " has applied another log than the coordinator"));
    }
    if (r.bye && (r.pending > 0 || r.finished != r.started)) {
      wrong.push_back(concat("rank ", rank, " still waits after its Bye"));
    }
    if (is_culprit(rank) || !needed || r.bye) continue;
    if (!r.fatal) {
      const bool waits = r.pending > 0 || r.leaving || r.finished != r.started;
      if (waits || !may_be_untold) wrong.push_back(concat("rank ", rank, " has not ended"));
      continue;
    }
    const std::string told = r.fatal->what();
    if (text.empty()) text = told;
    const bool known = std::any_of(causes.begin(), causes.end(), [&](const CauseOfEnd& cause) {
      return r.fatal->code() == cause.code && told.find(cause.text) != std::string::npos;
    });
    if (!known || (causes.size() == 1 && told != text)) {
      wrong.push_back(concat("rank ", rank, " ended with: ", told));
    }
    if (r.pending > 0) wrong.push_back(concat("rank ", rank, " still waits"));
  }
  return wrong;
}

void count_outcomes(const SimulatedCluster& cluster, std::map<std::string, int>& seen) {
  for (int rank = 0; rank < cluster.size(); ++rank) {
    const SimulatedCluster::Rank& r = cluster.rank(rank);
    for (const Outcome& outcome : r.outcomes) {
      const std::string text = describe(outcome);
      ++seen[text.substr(0, text.find_first_of(outcome.kind == Outcome::Kind::Failed ? ")" : " "))];
    }
    seen["bye"] += r.bye ? 1 : 0;
    seen["stall report"] += static_cast<int>(
        std::count_if(r.warnings.begin(), r.warnings.end(),
                      [](const std::string& warning) { return warning.starts_with("stalled: "); }));
    seen["batch"] += static_cast<int>(r.finished);
    const Statistics statistics = r.controller->statistics();
    seen["freeze"] += static_cast<int>(statistics.freezes);
    seen["thaw"] += static_cast<int>(statistics.thaws);
    seen["frozen start"] += static_cast<int>(statistics.frozen_starts);
    seen["eager start"] += static_cast<int>(statistics.eager_starts);
    seen["void start"] += static_cast<int>(statistics.void_starts);
    seen["place given up"] += r.places_given_up;
    seen["freeze of rows"] += r.freezes_of_rows;
    seen["frozen start fused with another"] +=
        static_cast<int>(statistics.frozen_starts - statistics.frozen_batches);
    const std::vector<int>& host_of = cluster.options().controller.host_of;
    if (std::count(host_of.begin(), host_of.end(), 0) == std::ssize(host_of)) continue;
    seen["frozen start between hosts"] += static_cast<int>(statistics.frozen_starts);
  }
}

}  // namespace horon::simulation
