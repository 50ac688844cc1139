#include "horon/tests/support/simulation/expected_outcomes.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "horon/core/base/text.h"
#include "horon/core/negotiation/agreement.h"

namespace horon::simulation {
namespace {

using core::concat;

struct Vote {
  bool refused = false;
  size_t action = 0;
};

// The votes of all ranks that meet under one name.
struct Round {
  std::vector<std::optional<Vote>> votes;
  bool decided = false;
};

bool specs_agree(const core::EntrySpec& a, const core::EntrySpec& b) {
  core::EntrySpec left = a;
  core::EntrySpec right = b;
  for (core::EntrySpec* spec : {&left, &right}) {
    if (!core::has_own_rows(spec->kind)) continue;
    for (core::TensorPart& part : spec->parts) {
      if (!part.shape.empty()) part.shape.front() = 0;
    }
  }
  return left == right;
}

class Oracle {
 public:
  Oracle(const std::vector<Program>& programs, const std::vector<int>& names)
      : programs_(programs), names_(names) {
    ranks_.resize(programs.size());
    out_.votes.resize(programs.size());
    for (const Program& program : programs) out_.outcomes.emplace_back(program.size());
  }

  Expectation run() {
    bool news = true;
    while (news) {
      news = false;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) news = advance(rank) || news;
      for (auto& [name, rounds] : rounds_) {
        while (decide(name, rounds)) news = true;
      }
      // Joined comes after everything that it lets complete.
      if (!news) news = decide_joined();
    }
    conclude();
    return std::move(out_);
  }

 private:
  using Rounds = std::vector<Round>;
  struct Rank {
    size_t position = 0;
    std::map<std::string, size_t> latest;
    std::map<std::string, size_t> said;  // votes under each name since the last Joined
    size_t pending = 0;
    std::optional<size_t> joining;  // the action that joins
    bool leaving = false;
    bool bye = false;
  };

  Outcome& outcome(size_t rank, size_t action) { return out_.outcomes[rank][action]; }

  bool blocked(size_t rank) const {
    const Rank& r = ranks_[rank];
    const Action& action = programs_[rank][r.position];
    if (action.kind != Action::Kind::Wait) return false;
    if (action.name.empty()) return r.pending > 0 || (r.leaving && !r.bye);
    const auto latest = r.latest.find(action.name);
    return latest != r.latest.end() &&
           out_.outcomes[rank][latest->second].kind == Outcome::Kind::Pending;
  }

  bool advance(size_t rank) {
    Rank& r = ranks_[rank];
    bool news = false;
    while (r.position < programs_[rank].size() && !blocked(rank)) {
      step(rank, r.position++);
      news = true;
    }
    return news;
  }

  void step(size_t rank, size_t index) {
    Rank& r = ranks_[rank];
    const Action& action = programs_[rank][index];
    switch (action.kind) {
      case Action::Kind::Submit:
        return submit(rank, index);
      case Action::Kind::Refuse:
        if (!r.leaving && !r.joining) say(rank, action.name, {true, index});
        return;
      case Action::Kind::Join:
        r.joining = index;
        pend(rank, index);
        return;
      case Action::Kind::Shutdown:
        r.leaving = true;
        return;
      case Action::Kind::Wait:
      case Action::Kind::Think:
        return;
    }
  }

  void submit(size_t rank, size_t index) {
    Rank& r = ranks_[rank];
    const Action& action = programs_[rank][index];
    const auto latest = r.latest.find(action.name);
    const bool in_flight =
        latest != r.latest.end() && outcome(rank, latest->second).kind == Outcome::Kind::Pending;
    if (r.leaving) return fail(rank, index, ErrorCode::NotInitialized);
    if (r.joining) return fail(rank, index, ErrorCode::InvalidArgument);
    if (in_flight) return fail(rank, index, ErrorCode::DuplicateName);
    r.latest[action.name] = index;
    pend(rank, index);
    say(rank, action.name, {false, index});
  }

  void pend(size_t rank, size_t index) {
    outcome(rank, index).kind = Outcome::Kind::Pending;
    ++ranks_[rank].pending;
  }

  void fail(size_t rank, size_t index, ErrorCode code) {
    outcome(rank, index).kind = Outcome::Kind::Failed;
    outcome(rank, index).code = code;
  }

  void say(size_t rank, const std::string& name, Vote vote) {
    const size_t place = ranks_[rank].said[name]++;
    Rounds& rounds = rounds_[name];
    if (rounds.size() <= place) rounds.resize(place + 1);
    if (rounds[place].votes.empty()) rounds[place].votes.resize(ranks_.size());
    rounds[place].votes[rank] = vote;
  }

  // The others learn of Join and Shutdown only after all votes that a refusal holds back.
  bool away(size_t rank) const {
    const Rank& r = ranks_[rank];
    if (!r.joining && !r.leaving) return false;
    for (const auto& [name, rounds] : rounds_) {
      size_t open = 0;
      for (const Round& round : rounds) {
        open += static_cast<size_t>(!round.decided && round.votes[rank].has_value());
      }
      if (open > 1) return false;
    }
    return true;
  }

  bool decide(const std::string& name, Rounds& rounds) {
    const auto first = std::find_if(rounds.begin(), rounds.end(),
                                    [](const Round& round) { return !round.decided; });
    if (first == rounds.end()) return false;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!first->votes[rank] && !away(rank)) return false;
    }
    first->decided = true;
    Outcome verdict = judge(name, *first);
    verdict.round = next_round_++;
    if (verdict.kind != Outcome::Kind::Ran) ++out_.records;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!first->votes[rank]) continue;
      ++out_.votes[rank];
      if (!first->votes[rank]->refused) settle(rank, first->votes[rank]->action, verdict);
    }
    return true;
  }

  void settle(size_t rank, size_t action, const Outcome& verdict) {
    outcome(rank, action) = verdict;
    --ranks_[rank].pending;
  }

  const Action& action_of(size_t rank, const Vote& vote) const {
    return programs_[rank][vote.action];
  }

  Outcome judge(const std::string& name, const Round& round) const {
    std::vector<int> left;
    std::optional<size_t> refused;
    bool disagree = false;
    const core::EntrySpec* spec = nullptr;
    std::vector<std::pair<int, core::SpecPtr>> said;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::optional<Vote>& vote = round.votes[rank];
      if (!vote && !ranks_[rank].joining) left.push_back(static_cast<int>(rank));
      if (vote && vote->refused && !refused) refused = rank;
      if (!vote || vote->refused) continue;
      const Action& action = action_of(rank, *vote);
      said.emplace_back(names_[rank], action.spec);
      disagree = disagree || (spec != nullptr && !specs_agree(*spec, *action.spec));
      if (spec == nullptr) spec = action.spec.get();
    }
    if (!left.empty()) return failed(ErrorCode::RankLeft, concat(ranks_text(left, names_), " ha"));
    if (refused) {
      return failed(ErrorCode::InvalidArgument,
                    concat("refused on rank ", names_[*refused], ": no good on rank ", *refused));
    }
    if (disagree) return failed(ErrorCode::Mismatch, core::disagreement(name, said));
    std::vector<int> joined;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!round.votes[rank]) joined.push_back(static_cast<int>(rank));
    }
    if (spec->captured && !joined.empty()) {
      return failed(ErrorCode::RankLeft,
                    concat("captured in a graph: ", ranks_text(joined, names_)));
    }
    if (spec->kind == CollectiveKind::Broadcast) {
      const auto root = std::find(names_.begin(), names_.end(), spec->root);
      if (root != names_.end() && !round.votes[static_cast<size_t>(root - names_.begin())]) {
        return failed(ErrorCode::RankLeft, concat("its root, rank ", spec->root));
      }
    }
    const bool needs_all = core::has_own_rows(spec->kind)
                               ? spec->kind != CollectiveKind::Allgather
                               : spec->kind == CollectiveKind::Reducescatter;
    if (needs_all && !joined.empty()) {
      return failed(ErrorCode::RankLeft, concat(ranks_text(joined, names_), " ha"));
    }
    return reduce(round, *spec);
  }

  static Outcome failed(ErrorCode code, const std::string& text) {
    Outcome out;
    out.kind = Outcome::Kind::Failed;
    out.code = code;
    out.text = text;
    return out;
  }

  Outcome reduce(const Round& round, const core::EntrySpec& spec) const {
    Outcome out;
    out.kind = Outcome::Kind::Ran;
    std::vector<Contribution> data;
    std::vector<bool> produced(spec.parts.size());
    bool some_absent = false;
    bool some_present = false;
    const auto size = static_cast<int>(ranks_.size());
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const std::optional<Vote>& vote = round.votes[rank];
      if (vote) {
        const Action& action = action_of(rank, *vote);
        const std::vector<int64_t> said =
            extents_said(*action.spec, names_[rank] == action.spec->root, size);
        out.extents.insert(out.extents.end(), said.begin(), said.end());
        ++out.contributors;
        data.push_back({static_cast<int>(rank), vote->action});
        some_absent = some_absent || !action.absent.empty();
        some_present = some_present || action.absent.empty();
        for (size_t part = 0; part < produced.size(); ++part) {
          if (!action.absent.empty() && action.absent[part]) continue;
          produced[part] = true;
          some_present = true;
        }
      }
      // A rank that has joined has no rows of an allgather.
      if (!vote && core::has_own_rows(spec.kind)) {
        out.extents.resize(out.extents.size() + spec.parts.size());
      }
    }
    if (!some_present) {
      Outcome unused;
      unused.kind = Outcome::Kind::Unused;
      return unused;
    }
    if (some_absent) out.produced = produced;
    out.contributions = std::make_shared<const std::vector<Contribution>>(std::move(data));
    return out;
  }

  bool decide_joined() {
    std::vector<int> joiners;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!away(rank)) return false;
      if (ranks_[rank].joining) joiners.push_back(static_cast<int>(rank));
    }
    const bool bye =
        std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.leaving; });
    if (joiners.empty() && (!bye || out_.bye)) return false;
    out_.records += (joiners.empty() ? 0 : 1) + (bye ? 1 : 0);
    out_.bye = bye;
    rounds_.clear();
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      Rank& r = ranks_[rank];
      r.said.clear();
      r.bye = bye;
      if (!r.joining) continue;
      Outcome joined;
      joined.kind = Outcome::Kind::Joined;
      joined.round = out_.joiners.size();
      settle(rank, *std::exchange(r.joining, std::nullopt), joined);
    }
    if (!joiners.empty()) out_.joiners.push_back(joiners);
    return true;
  }

  void conclude() {
    for (const auto& [name, rounds] : rounds_) {
      const auto first = std::find_if(rounds.begin(), rounds.end(),
                                      [](const Round& round) { return !round.decided; });
      if (first == rounds.end()) continue;
      OpenEntry& open = out_.open[name];
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (first->votes[rank]) ++out_.votes[rank];
        if (const std::optional<Vote>& vote = first->votes[rank]) {
          (vote->refused ? open.refused : open.ready).push_back(static_cast<int>(rank));
        }
        if (!first->votes[rank] && !away(rank)) open.missing.push_back(static_cast<int>(rank));
      }
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (away(rank)) out_.away.push_back(static_cast<int>(rank));
      out_.done.push_back(ranks_[rank].position == programs_[rank].size());
    }
  }

  const std::vector<Program>& programs_;
  const std::vector<int>& names_;
  std::vector<Rank> ranks_;
  std::map<std::string, Rounds> rounds_;
  size_t next_round_ = 0;
  Expectation out_;
};

}  // namespace

std::string ranks_text(const std::vector<int>& ranks, const std::vector<int>& names) {
  std::vector<int> named;
  for (const int rank : ranks) named.push_back(names.at(static_cast<size_t>(rank)));
  return concat(named.size() == 1 ? "rank " : "ranks ", core::list_ranks(named));
}

Expectation expected_outcomes(const std::vector<Program>& programs, const std::vector<int>& names) {
  return Oracle(programs, names).run();
}

}  // namespace horon::simulation
