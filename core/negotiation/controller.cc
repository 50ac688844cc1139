#include "horon/core/negotiation/controller.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/all_ranks.h"
#include "horon/core/base/text.h"
#include "horon/core/negotiation/told_extents.h"
#include "horon/core/negotiation/wire_format.h"

namespace horon::core {
namespace {

constexpr int kCoordinatorRank = 0;  // the lowest member
constexpr Nanos kSecond = 1'000'000'000;

}  // namespace

Controller::Options Controller::complete(Options options) {
  if (options.ranks.empty()) options.ranks = all_ranks(options.size);
  HORON_CHECK(options.ranks.size() == static_cast<size_t>(options.size), "one name per member");
  options.host_of.resize(options.ranks.size());
  return options;
}

Controller::Controller(const Options& options)
    : options_(complete(options)),
      sends_eagerly_(options.eager && options.size <= kEagerMembersMax && several_hosts()),
      outbox_(options.rank, options_.host_of),
      member_(member_options()),
      liveness_(options.ask_after, options.dead_after) {
  if (options.rank != kCoordinatorRank) return;
  Coordinator::Options coordinator;
  coordinator.ranks = options_.ranks;
  coordinator.may_leave = options_.may_leave;
  coordinator.fusion_bytes_max = options.fusion_bytes_max;
  coordinator.alone_bytes = options.alone_bytes;
  coordinator.batches_in_flight_max = options.batches_in_flight_max;
  coordinator.host_of = options_.host_of;
  coordinator.eager = sends_eagerly_;
  if (options.gate != nullptr) coordinator.freeze_after = options.freeze_after;
  coordinator.frozen_max = options.frozen_max;
  coordinator_ = std::make_unique<Coordinator>(coordinator);
}

Controller::~Controller() = default;

bool Controller::several_hosts() const {
  return options_.host_of != std::vector<int>(options_.host_of.size());
}

Member::Options Controller::member_options() {
  const auto host = options_.host_of.begin() + options_.rank;
  Member::Options member;
  member.index = options_.rank;
  member.ranks = options_.ranks;
  member.several_hosts = several_hosts();
  member.sends_eagerly = sends_eagerly_;
  member.first_of_host = std::find(options_.host_of.begin(), host, *host) == host;
  if (options_.gate != nullptr && member.several_hosts && options_.rank == kCoordinatorRank) {
    spreading_gate_.emplace(*options_.gate, outbox_);
  }
  member.gate = gate();
  member.thaw_after = options_.thaw_after;
  member.fusion_bytes_max = options_.fusion_bytes_max;
  member.alone_bytes = options_.alone_bytes;
  member.batches_in_flight_max = options_.batches_in_flight_max;
  return member;
}

void Controller::submit(Request request) {
  if (fatal_) {
    effects_.finished.push_back({request.ticket, *fatal_});
    return;
  }
  if (!member_.has_unserved()) last_progress_ = now_;
  const std::string sought = sought_.empty() ? "" : request.name;
  member_.submit(std::move(request), effects_);
  if (!sought.empty()) answer_seekers(sought);
}

void Controller::refuse(const std::string& name, const std::string& text) {
  if (fatal_) return;
  member_.refuse(name, text);
  answer_seekers(name);
}

void Controller::join(Ticket ticket) {
  if (fatal_) {
    effects_.finished.push_back({ticket, *fatal_});
    return;
  }
  if (!member_.has_unserved()) last_progress_ = now_;
  member_.join(ticket, effects_);
}

void Controller::shutdown() {
  patient_ = false;
  if (fatal_) return;
  if (!member_.has_unserved()) last_progress_ = now_;
  member_.shutdown();
  for (const auto& [name, seekers] : sought_) {
    for (const int seeker : seekers) outbox_.to_one(seeker, Found{name, true});
  }
  sought_.clear();
}

void Controller::leave() {
  if (member_.leaving()) return;
  shutdown();
  patient_ = true;
}

void Controller::receive(int from, std::span<const std::byte> bytes) {
  ++messages_received_;
  if (fatal_) return;
  liveness_.heard(from);
  try {
    const Envelope envelope = decode(bytes);
    if (envelope.set != options_.set) {
      throw Error(ErrorCode::Internal, "it is about a process set that is not here");
    }
    for (const Item& item : envelope.items) take_item(from, item, envelope.applied);
  } catch (const Error& error) {
    fail(Error(error.code(), concat("message from rank ", name_of(from), ": ", error.what())));
  }
}

void Controller::take_item(int from, const Item& item, uint64_t applied) {
  if (fatal_) return;
  if (ended_ && !std::holds_alternative<Ping>(item) && !std::holds_alternative<Abort>(item)) return;
  if (is_record(item)) return take_record(from, item);
  std::visit(Overloaded{
                 [&](const Ping& ping) {
                   outbox_.to_one(from, Pong{ping.number});
                   // The member that asks waits for some rank. Only the coordinator may know which,
                   // so the coordinator asks them all.
                   if (coordinator_ != nullptr && !ended_) ask_everybody(from);
                 },
                 [](const Pong&) {},  // receive() has noted the answer
                 [&](const Seek& seek) { take_seek(from, seek.name); },
                 [&](const Found& found) { effects_.found.push_back(found); },
                 [&](const Stall& stall) { stall_text_ = stall.text; },
                 [&](const Abort& abort) {
                   // The sender may have died before it had told everybody. The coordinator passes
                   // the Abort on to all, so that no member blames the coordinator, who answers no
                   // more.
                   if (coordinator_ != nullptr) {
                     outbox_.to_all(abort);
                   } else if (from != kCoordinatorRank) {
                     outbox_.to_one(kCoordinatorRank, abort);
                   }
                   end(Error(abort.code, abort.text));
                 },
                 [&](const RingItem& ring_item) { take_ring_item(from, ring_item, applied); },
                 [&](const Eager& eager) { take_eager(from, eager, applied); },
                 [&](const auto&) {
                   if (coordinator_ == nullptr) {
                     throw Error(ErrorCode::Internal,
                                 "a submission reached a rank that does not decide");
                   }
                   coordinator_->take(from, item, applied, now_);
                 },
             },
             item);
}

void Controller::take_ring_item(int from, const RingItem& item, uint64_t applied) {
  const bool goes_up = item.kind == RingItem::Kind::Filled;
  if (coordinator_ != nullptr && goes_up) return coordinator_->take(from, item, applied, now_);
  const bool is_place = item.kind == RingItem::Kind::Marker || item.value <= Gate::kPlaceMax;
  if (goes_up || from != kCoordinatorRank || !member_.may_copy() || !is_place) {
    throw Error(ErrorCode::Internal, "an impossible item of a ring came");
  }
  last_progress_ = now_;
  member_.copy(item);
}

void Controller::take_eager(int from, const Eager& eager, uint64_t applied) {
  last_progress_ = now_;
  if (coordinator_ != nullptr) {
    coordinator_->take(from, Eager{eager.id, eager.round, {}}, applied, now_);
  }
  member_.take_eager(from, eager, effects_);
}

void Controller::take_record(int from, const Item& item) {
  if (coordinator_ != nullptr || from != kCoordinatorRank) {
    throw Error(ErrorCode::Internal, "a record came from a rank that does not decide");
  }
  last_progress_ = now_;
  member_.hear(item, effects_);
  if (effects_.bye) stall_text_.clear();
}

void Controller::batch_enqueued() {
  member_.batch_enqueued();
  last_progress_ = now_;
  if (coordinator_ != nullptr) coordinator_->batch_enqueued();
}

void Controller::batch_finished(bool was_enqueued) {
  if (!was_enqueued) batch_enqueued();  // it needs no queue any more
  member_.batch_finished();
  last_progress_ = now_;
  if (coordinator_ != nullptr) coordinator_->batch_finished();
}

void Controller::fail(const Error& cause) {
  if (fatal_ || ended_) return;
  const Error error = that_ends_the_job(cause);
  for (int peer = 0; peer < options_.size; ++peer) {
    if (peer != options_.rank) outbox_.to_one(peer, Abort{error.code(), error.what()});
  }
  end(error);
}

void Controller::end(const Error& error) {
  fatal_ = error;
  effects_.fatal = error;
  member_.fail_all(error, effects_);
}

void Controller::seek(const std::string& name) {
  if (fatal_) return;
  for (int peer = 0; peer < options_.size; ++peer) {
    if (peer != options_.rank) outbox_.to_one(peer, Seek{name});
  }
}

void Controller::expect_found(int change) {
  if (expected_ == 0) last_progress_ = now_;
  expected_ += change;
}

void Controller::take_seek(int from, const std::string& name) {
  if (member_.has_said(name)) return outbox_.to_one(from, Found{name});
  if (member_.leaving()) return outbox_.to_one(from, Found{name, true});
  sought_[name].insert(from);
}

void Controller::answer_seekers(const std::string& name) {
  const auto sought = sought_.find(name);
  if (sought == sought_.end() || !member_.has_said(name)) return;
  for (const int seeker : sought->second) outbox_.to_one(seeker, Found{name});
  sought_.erase(sought);
}

void Controller::ask(int peer) {
  if (liveness_.suspect(peer, now_)) outbox_.to_one(peer, Ping{++ping_number_});
}

void Controller::ask_everybody(int but) {
  if (now_ < next_roll_call_) return;
  next_roll_call_ = now_ + options_.ask_after;
  for (int peer = 0; peer < options_.size; ++peer) {
    if (peer != options_.rank && peer != but) ask(peer);
  }
}

void Controller::greet() {
  for (int peer = 0; peer < options_.size; ++peer) {
    if (peer == options_.rank) continue;
    (void)liveness_.suspect(peer, now_);  // it must answer, if that is asked of anybody
    outbox_.to_one(peer, Ping{++ping_number_});
  }
}

void Controller::set_time(Nanos now) {
  if (clock_is_set_ && now - now_ > 3 * kSecond) forgive(now - now_);
  if (!clock_is_set_) last_progress_ = now;
  now_ = now;
  clock_is_set_ = true;
  if (!fatal_ && !ended_) member_.set_time(now);
}

void Controller::tick(Nanos now) {
  set_time(now);
  if (fatal_ || ended_) return;
  const bool waiting =
      member_.has_unserved() || member_.batches_running() > 0 || expected_ > 0 || awaits_end();
  if (waiting && now - last_progress_ >= options_.ask_after) {
    coordinator_ == nullptr ? ask(kCoordinatorRank) : ask_everybody(options_.rank);
  }
  if (coordinator_ != nullptr && now_ >= next_look_) {
    next_look_ = now_ + options_.ask_after / 4;
    tick_coordinator();
    if (fatal_) return;
  }
  if (const std::optional<int> dead = liveness_.dead(now)) {
    fail(Error(ErrorCode::PeerDead,
               concat("rank ", name_of(*dead), " has not answered for ",
                      static_cast<double>(liveness_.dead_after()) / kSecond,
                      " s: its process is frozen, dead or cut off (HORON_DEAD_AFTER_S sets this "
                      "time)")));
  }
}

bool Controller::advance() {
  if (coordinator_ != nullptr) {
    for (const Place place : coordinator_->take_filled_places()) member_.all_hosts_filled(place);
  }
  const bool moved = member_.advance(effects_);
  if (moved) last_progress_ = now_;
  if (coordinator_ != nullptr) {
    const uint64_t batches = member_.statistics().frozen_batches;
    coordinator_->frozen_started(batches - std::exchange(frozen_batches_told_, batches),
                                 member_.started_places());
  }
  member_.forget_started_places();
  return moved;
}

// The records of one decision, behind their marker if anything is frozen.
std::vector<Item> Controller::decide() {
  const bool frozen = coordinator_->any_frozen();
  waits_for_room_ = frozen && !gate()->room();
  if (waits_for_room_) return {};
  std::vector<Item> log = coordinator_->decide();
  if (frozen && !log.empty()) gate()->append_marker(coordinator_->log_size());
  return log;
}

// Passes items between member and coordinator until neither has more.
void Controller::settle_news() {
  for (;;) {
    const bool moved = advance();
    for (Eager& eager : member_.take_eager_news()) {
      const Eager vote{eager.id, eager.round, {}};
      outbox_.to_all(std::move(eager));
      member_.gather(vote.id, effects_);
      if (coordinator_ != nullptr) coordinator_->take(options_.rank, vote, member_.applied(), now_);
    }
    std::vector<Item> news = member_.take_news();
    if (coordinator_ == nullptr) {
      for (Item& item : news) outbox_.to_one(kCoordinatorRank, std::move(item));
      return;
    }
    for (const Item& item : news) coordinator_->take(options_.rank, item, member_.applied(), now_);
    const std::vector<Item> log = decide();
    if (!moved && news.empty() && log.empty()) {
      if (!told_stalled_.empty()) renew_stall_text();  // what is complete may wait for its record
      return;
    }
    for (const Item& record : log) {
      last_progress_ = now_;
      outbox_.to_all(record);
      if (differs_by_member(record)) {
        member_.hear(told_to(record, static_cast<size_t>(options_.rank)), effects_);
      } else {
        member_.hear(record, effects_);
      }
    }
    renew_stall_text();
  }
}

Effects Controller::take_effects() {
  Effects effects;
  take_effects(effects);
  return effects;
}

void Controller::take_effects(Effects& effects) {
  if (!fatal_ && !ended_) {
    try {
      settle_news();
    } catch (const Error& error) {
      fail(error);
    }
  }
  outbox_.pack(options_.set, member_.applied(), effects_.messages);
  messages_sent_ += effects_.messages.size();
  ended_ = ended_ || effects_.bye;
  effects.clear();
  std::swap(effects, effects_);
}

Statistics Controller::statistics() const {
  Statistics statistics = member_.statistics();
  statistics.control_messages_sent = messages_sent_;
  statistics.control_messages_received = messages_received_;
  return statistics;
}

bool Controller::at_rest() const {
  return !member_.has_unserved() && member_.batches_running() == 0 && !member_.waits_for_room() &&
         expected_ == 0 && (coordinator_ == nullptr || coordinator_->at_rest());
}

}  // namespace horon::core
