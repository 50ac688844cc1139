// The state of an optimizer that is shared out: which part a rank keeps, and how all of it comes to
// one rank.
#include <algorithm>
#include <sstream>
#include <type_traits>
#include <utility>

#include <torch/serialize/archive.h>

#include "horon/core/base/error.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/gradients/state_shards.h"

namespace horon::torch_detail {
namespace {

using core::concat;
using StateMap =
    std::remove_reference_t<decltype(std::declval<::torch::optim::Optimizer&>().state())>;

using States = std::vector<std::pair<void*, StateMap::mapped_type>>;

// Takes the state of the parameters that `which` chooses out of the map.
template <class Which>
States take_out(StateMap& state, const Which& which) {
  States taken;
  for (auto entry = state.begin(); entry != state.end();) {
    if (!which(entry->first)) {
      ++entry;
      continue;
    }
    taken.emplace_back(entry->first, std::move(entry->second));
    entry = state.erase(entry);
  }
  return taken;
}

// While it lives, the optimizer has no state of some parameters.
class StateAside {
 public:
  template <class Which>
  StateAside(StateMap& state, const Which& which) : state_(state), aside_(take_out(state, which)) {}
  ~StateAside() {
    for (auto& [parameter, state] : aside_) state_[parameter] = std::move(state);
  }
  StateAside(const StateAside&) = delete;
  StateAside& operator=(const StateAside&) = delete;

 private:
  StateMap& state_;
  States aside_;
};

}  // namespace

void StateShards::keep_own(Optimizer& optimizer) {
  has_ = Has::Part;
  (void)take_out(optimizer.state(), [this](const void* each) { return !is_own(each); });
}

void StateShards::consolidate(Optimizer& optimizer, int to) {
  const std::string call = concat(name_, ".consolidate_state");
  const bool is_member = member_of(to) < ranks().size();
  require_agreement(call, {{"the rank", std::to_string(to)}},
                    is_member ? std::string()
                              : concat("rank ", to, " is not in the process set, whose ranks are ",
                                       core::list_ranks(ranks())),
                    set_);
  const auto has = of_all_ranks(call + ".has", {static_cast<int64_t>(has_)});
  if (has[member_of(to)].front() != static_cast<int64_t>(Has::Part)) return;
  const auto loaded = std::find_if(has.begin(), has.end(), [](const auto& row) {
    return row.front() == static_cast<int64_t>(Has::Loaded);
  });
  if (loaded != has.end()) {
    const int rank = ranks()[static_cast<size_t>(loaded - has.begin())];
    throw Error(
        ErrorCode::InvalidArgument,
        concat(call, "(", to, "): rank ", rank, " has loaded state since the last step, ",
               "but others have not; call broadcast_optimizer_state(optimizer, ", rank, ") first"));
  }
  try {
    gather_state(optimizer, to, call);
  } catch (...) {
    if (me() == to) keep_own(optimizer);
    throw;
  }
  if (me() == to) has_ = Has::Whole;
}

// One owner after the other, so that there is never a second copy of all state at once.
void StateShards::gather_state(Optimizer& optimizer, int to, const std::string& call) {
  const bool here = me() == to;
  for (size_t member = 0; member < ranks().size(); ++member) {
    const int owner = ranks()[member];
    if (owner == to) continue;
    std::string bytes;
    const auto save = [&] {
      if (me() == owner) bytes = save_own(optimizer);
    };
    on_all_ranks(save, {.name = call, .process_set = set_, .worker = owner});
    const std::vector<std::string> of_ranks =
        gather_bytes(bytes, {.name = call, .root = to, .process_set = set_});
    const auto load = [&] {
      if (here) load_theirs(optimizer, of_ranks.at(member), owner);
    };
    on_all_ranks(load, {.name = call, .process_set = set_, .worker = to});
  }
}

std::string StateShards::save_own(Optimizer& optimizer) {
  const StateAside theirs(optimizer.state(), [this](const void* each) { return !is_own(each); });
  std::ostringstream stream;
  torch::serialize::OutputArchive archive;
  saves_own_ = true;
  try {
    optimizer.save(archive);
  } catch (...) {
    saves_own_ = false;
    throw;
  }
  saves_own_ = false;
  archive.save_to(stream);
  return std::move(stream).str();
}

// load() may add to the state that is there, or replace it.
void StateShards::load_theirs(Optimizer& optimizer, const std::string& bytes, int owner) const {
  if (items_.empty()) return;
  std::istringstream stream(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(stream, items_.front().parameter.device());
  const StateAside others(optimizer.state(), [&](const void* parameter) {
    return !owners_->belongs_to(parameter, owner);
  });
  optimizer.state().clear();
  optimizer.load(archive);
}

void StateShards::require_whole() const {
  if (saves_own_ || has_ != Has::Part) return;
  throw Error(ErrorCode::InvalidArgument,
              concat("save() of the optimizer of \"", name_, "\": its state is sharded over ",
                     ranks().size(), " ranks; call consolidate_state(", me(),
                     ") on all of them first, which gathers it on rank ", me()));
}

}  // namespace horon::torch_detail
