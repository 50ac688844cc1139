#include "horon/torch_bindings/gradients/state_shards.h"

#include <algorithm>
#include <deque>
#include <map>
#include <sstream>
#include <unordered_set>
#include <utility>

#include <ATen/ops/full.h>
#include <torch/serialize/archive.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/tensors/failures.h"
#include "horon/torch_bindings/tensors/parcels.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::torch_detail {
namespace {

using core::concat;
using StateMap =
    std::remove_reference_t<decltype(std::declval<::torch::optim::Optimizer&>().state())>;

// All of one length, so that owners that send in turns keep a network busy both ways; and not too
// many, since each has a name.
constexpr int64_t kParcelBytesMin = 1 << 20;
constexpr int64_t kParcelsOfAStep = 256;
// Each may take a buffer, and the memory that is saved should stay saved.
constexpr size_t kParcelsInFlight = 8;

// While it lives, the parameters have no gradients.
class HiddenGradients {
 public:
  HiddenGradients() = default;
  ~HiddenGradients() {
    for (auto& [parameter, gradient] : hidden_) parameter.mutable_grad() = std::move(gradient);
  }
  HiddenGradients(const HiddenGradients&) = delete;
  HiddenGradients& operator=(const HiddenGradients&) = delete;

  void hide(const at::Tensor& parameter) {
    hidden_.emplace_back(parameter, parameter.grad());
    parameter.mutable_grad() = at::Tensor();
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> hidden_;
};

using States = std::vector<std::pair<void*, StateMap::mapped_type>>;

// The state of the parameters that `which` says, which the map has no more.
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

int64_t bytes_of(const at::Tensor& parameter) { return static_cast<int64_t>(parameter.nbytes()); }

// From the first byte of a tensor to the one behind its last.
std::pair<const char*, const char*> memory_of(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* const begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + (last + 1) * static_cast<int64_t>(tensor.element_size())};
}

}  // namespace

StateShards::StateShards(std::string name, ProcessSet set, const NamedTensors& parameters,
                         const Groups& groups)
    : name_(std::move(name)),
      set_(std::move(set)),
      ranks_(set_.ranks()),
      me_(ranks_.at(static_cast<size_t>(set_.rank()))),
      trained_bytes_(ranks_.size()),
      frozen_bytes_(ranks_.size()) {
  add(parameters, groups);
}

void StateShards::add(const NamedTensors& parameters, const Groups& groups) {
  const size_t first = items_.size();
  for (const auto& [name, parameter] : parameters) {
    const bool is_new = owners_.emplace(parameter.unsafeGetTensorImpl(), 0).second;
    if (is_new) items_.push_back({name, parameter, 0});
  }
  share_out(first);
  require_apart();
  require_once(groups);
}

// The longest first, each to the member that has the fewest bytes so far: all ranks find the same,
// and what was shared out before stays where it is. Frozen ones have no state, and may be many.
void StateShards::share_out(size_t first) {
  for (const bool trained : {true, false}) {
    std::vector<Item*> added;
    for (size_t i = first; i < items_.size(); ++i) {
      if (items_[i].parameter.requires_grad() == trained) added.push_back(&items_[i]);
    }
    std::stable_sort(added.begin(), added.end(), [](const Item* a, const Item* b) {
      return bytes_of(a->parameter) > bytes_of(b->parameter);
    });
    std::vector<int64_t>& bytes = trained ? trained_bytes_ : frozen_bytes_;
    for (Item* const item : added) {
      const auto least = std::min_element(bytes.begin(), bytes.end());
      *least += bytes_of(item->parameter);
      item->owner = ranks_[static_cast<size_t>(least - bytes.begin())];
      owners_[item->parameter.unsafeGetTensorImpl()] = item->owner;
    }
  }
}

// Two owners would move the same memory, each by its own step.
void StateShards::require_apart() const {
  std::map<const char*, const Item*> by_end;  // of what has elements and is strided
  for (const Item& item : items_) {
    if (item.parameter.layout() != at::kStrided || item.parameter.numel() == 0) continue;
    const auto [begin, end] = memory_of(item.parameter);
    const auto other = by_end.upper_bound(begin);
    if (other != by_end.end() && memory_of(other->second->parameter).first < end) {
      throw Error(ErrorCode::InvalidArgument,
                  concat("shard_optimizer_state: parameters \"", other->second->name, "\" and \"",
                         item.name, "\" share memory; make them one tensor"));
    }
    by_end.emplace(end, &item);
  }
}

// LibTorch's load() gives the state of such a parameter to its last place alone.
void StateShards::require_once(const Groups& groups) const {
  std::unordered_set<const void*> seen;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      const auto item = std::find_if(items_.begin(), items_.end(), [&](const Item& each) {
        return each.parameter.is_same(parameter);
      });
      throw Error(ErrorCode::InvalidArgument,
                  concat("shard_optimizer_state: parameter \"",
                         item == items_.end() ? std::string("?") : item->name,
                         "\" stands in the optimizer twice"));
    }
  }
}

size_t StateShards::member_of(int rank) const {
  return static_cast<size_t>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
}

bool StateShards::is_own(const void* parameter) const {
  const auto owner = owners_.find(parameter);
  return owner == owners_.end() || owner->second == me_;
}

void StateShards::keep_own(Optimizer& optimizer) {
  has_ = Has::Part;
  (void)take_out(optimizer.state(), [this](const void* each) { return !is_own(each); });
}

// In the order of the members. Throws Error(RankLeft) if one of them has joined.
std::vector<int64_t> StateShards::of_all_ranks(const std::string& name, int64_t own) const {
  const PlainMode plain;
  const at::Tensor rows =
      allgather(at::full({1}, own, at::kLong), {.name = name, .process_set = set_});
  if (rows.size(0) < std::ssize(ranks_)) {
    throw Error(ErrorCode::RankLeft,
                concat(name, ": a rank has joined, and with it the optimizer's state of its ",
                       "parameters (shard_optimizer_state); let all ranks make as many steps"));
  }
  const auto* const begin = rows.const_data_ptr<int64_t>();
  return {begin, begin + rows.numel()};
}

// Else one rank would receive what another one does not send, or something else.
void StateShards::agree() const {
  Fingerprint all;
  all.add(has_ == Has::Loaded ? 1 : 0);
  for (const Item& item : items_) {
    all.add(2 * static_cast<uint64_t>(item.owner) + (item.parameter.grad().defined() ? 1 : 0));
  }
  const auto own = static_cast<int64_t>(all.value());
  const std::vector<int64_t> rows = of_all_ranks(name_ + ".step", own);
  if (std::all_of(rows.begin(), rows.end(), [own](int64_t each) { return each == own; })) return;
  std::vector<Fact> facts{{"the optimizer's state", has_ == Has::Loaded
                                                        ? "loaded since the last step"
                                                        : "as the last step has left it"}};
  for (const Item& item : items_) {
    const bool moves = item.parameter.grad().defined();
    facts.push_back({concat("parameter \"", item.name, "\""),
                     concat("in the shard of rank ", item.owner, moves ? ", with" : ", without",
                            " a gradient")});
  }
  require_agreement(concat(name_, ".shard_optimizer_state"), facts, {}, set_);
}

std::vector<StateShards::Parcel> StateShards::parcels() const {
  std::vector<std::vector<at::Tensor>> moved(ranks_.size());  // by the member that owns them
  int64_t bytes = 0;
  for (const Item& item : items_) {
    if (!item.parameter.grad().defined()) continue;
    moved[member_of(item.owner)].push_back(item.parameter);
    bytes += bytes_of(item.parameter);
  }
  const int64_t length = std::max(kParcelBytesMin, bytes / kParcelsOfAStep);
  std::vector<std::vector<Parcel>> of_members(ranks_.size());
  for (size_t member = 0; member < ranks_.size(); ++member) {
    const int owner = ranks_[member];
    for (std::vector<at::Tensor>& parcel : in_parcels_of(length, moved[member])) {
      const size_t number = of_members[member].size();
      of_members[member].push_back(
          {owner, concat(name_, ".parameters.", owner, ".", number), std::move(parcel)});
    }
  }
  // The owners in turns, so that all of them send.
  std::vector<Parcel> all;
  for (size_t turn = 0, before = 0; turn == 0 || all.size() > before; ++turn) {
    before = all.size();
    for (std::vector<Parcel>& parcels : of_members) {
      if (turn < parcels.size()) all.push_back(std::move(parcels[turn]));
    }
  }
  return all;
}

at::Tensor StateShards::step(Optimizer& optimizer, const std::function<at::Tensor()>& own_step) {
  agree();
  keep_own(optimizer);
  const std::vector<Parcel> all = parcels();
  at::Tensor result;
  try {
    HiddenGradients hidden;
    for (const Item& item : items_) {
      if (item.owner != me_ && item.parameter.grad().defined()) hidden.hide(item.parameter);
    }
    result = own_step();
  } catch (...) {
    std::vector<std::string> names;
    for (const Parcel& parcel : all) names.push_back(parcel.name);
    refuse(names, core::current_error().what());
    throw;
  }
  keep_own(optimizer);  // it may make state of parameters without a gradient
  exchange(all);
  return result;
}

void StateShards::refuse_step(const std::string& why) const { refuse({name_ + ".step"}, why); }

// The other ranks would wait for what this one does not begin.
void StateShards::refuse(const std::vector<std::string>& names, const std::string& why) const {
  try {
    refuse_calls(names, set_, concat("step() of \"", name_, "\": ", why));
  } catch (const Error&) {  // this rank throws what has happened here
  }
}

// Waits for all, also when one fails: none is in flight when the error is thrown.
void StateShards::exchange(const std::vector<Parcel>& parcels) const {
  std::deque<GroupHandle> in_flight;
  Failures failures;
  const auto wait_for_first = [&] {
    failures.run([&] { in_flight.front().wait(); });
    in_flight.pop_front();
  };
  for (const Parcel& parcel : parcels) {
    if (in_flight.size() == kParcelsInFlight) wait_for_first();
    failures.run([&] {
      in_flight.push_back(grouped_broadcast_async_(
          parcel.parameters, {.name = parcel.name, .root = parcel.owner, .process_set = set_}));
    });
  }
  while (!in_flight.empty()) wait_for_first();
  if (failures.first()) throw Error(*failures.first());
}

void StateShards::consolidate(Optimizer& optimizer, int to) {
  const std::string call = concat(name_, ".consolidate_state");
  const bool is_member = member_of(to) < ranks_.size();
  require_agreement(
      call, {{"the rank", std::to_string(to)}},
      is_member ? std::string()
                : concat("rank ", to, " is not one of the ranks ", core::list_ranks(ranks_)),
      set_);
  const std::vector<int64_t> has = of_all_ranks(call + ".has", static_cast<int64_t>(has_));
  if (has[member_of(to)] != static_cast<int64_t>(Has::Part)) return;
  const auto loaded = std::find(has.begin(), has.end(), static_cast<int64_t>(Has::Loaded));
  if (loaded != has.end()) {
    const int rank = ranks_[static_cast<size_t>(loaded - has.begin())];
    throw Error(ErrorCode::InvalidArgument,
                concat(call, "(", to, "): rank ", rank, " has loaded state since the last step, ",
                       "which others have not; call broadcast_optimizer_state(optimizer, ", rank,
                       ") first"));
  }
  try {
    gather_state(optimizer, to, call);
  } catch (...) {
    if (me_ == to) keep_own(optimizer);
    throw;
  }
  if (me_ == to) has_ = Has::Whole;
}

// One owner after the other, so that not all state is there a second time at once.
void StateShards::gather_state(Optimizer& optimizer, int to, const std::string& call) {
  const bool here = me_ == to;
  for (size_t member = 0; member < ranks_.size(); ++member) {
    const int owner = ranks_[member];
    if (owner == to) continue;
    std::string bytes;
    const auto save = [&] {
      if (me_ == owner) bytes = save_own(optimizer);
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
    const auto found = owners_.find(parameter);
    return found == owners_.end() || found->second != owner;
  });
  optimizer.state().clear();
  optimizer.load(archive);
}

void StateShards::require_whole() const {
  if (saves_own_ || has_ != Has::Part) return;
  throw Error(ErrorCode::InvalidArgument,
              concat("save() of the optimizer of \"", name_, "\": its state is shared out over ",
                     ranks_.size(), " ranks; call consolidate_state(", me_,
                     ") on all of them first, which gives rank ", me_, " all of it"));
}

}  // namespace horon::torch_detail
