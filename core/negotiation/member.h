// One rank's side of a process set: says what it has, applies the log (PROTOCOL.md, section 3).
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "horon/core/negotiation/effects.h"
#include "horon/core/negotiation/entry_ids.h"
#include "horon/core/negotiation/protocol.h"

namespace horon::core {

// What the program gives the controller for one entry.
struct Request {
  Ticket ticket = 0;
  std::string name;
  SpecPtr spec;
  std::vector<bool> absent;      // see Ready
  std::vector<int64_t> extents;  // see Ready
};

class Member {
 public:
  // `ranks`: of all members, as people know them; `index`: this one's place among them.
  Member(int index, std::vector<int> ranks);

  // A name that is unserved, or a call after join() or shutdown(), finishes with an error at once;
  // nothing is sent.
  void submit(Request request, Effects& effects);
  // The program's call was wrong here: let the others fail alike.
  void refuse(const std::string& name, const std::string& text);
  void join(Ticket ticket, Effects& effects);
  void shutdown();

  // One of the batches in `effects.starts` has ended here.
  void batch_finished();

  // A record of the log, in order.
  void apply(const Item& record, Effects& effects);

  // Items for the coordinator since the last call.
  std::vector<Item> take_news() { return std::exchange(news_, {}); }

  // Ends everything that is unserved with this error.
  void fail_all(const Error& error, Effects& effects);

  // Something was said and not yet served.
  bool has_unserved() const { return !unserved_.empty() || join_ticket_.has_value(); }
  std::vector<std::string> unserved_names() const;
  uint64_t applied() const { return applied_; }
  bool leaving() const { return leaving_; }
  // Batches that the log has started and that have not ended here.
  uint64_t batches_running() const { return batches_started_ - batches_ended_; }

 private:
  struct Vote {
    bool refused = false;  // no ticket: the caller has its error already
    std::string refusal;
    Request request;
  };
  struct Unserved {
    Vote said;
    std::vector<Vote> held;  // what the program did after a refusal; said when that is served
    const Vote& last() const { return held.empty() ? said : held.back(); }
  };

  // A name that was refused is free for the program, but not yet for the log: holds the vote back
  // until then.
  void hear(const std::string& name, Vote vote);
  void say(const std::string& name, const Vote& vote);
  void say_ready(const Request& request);
  // Join and Shutdown go behind everything that is held.
  void say_away();
  // "Nothing runs here any more", once for each number of batches.
  void say_drained();
  void apply(const Plan& plan, Effects& effects);
  void apply(const Fail& fail, Effects& effects);
  StartEntry start_entry(const PlannedEntry& planned, bool joined_here);
  void check(const PlannedBatch& batch) const;
  void check(const PlannedEntry& planned, const std::string& name, const EntrySpec& spec) const;
  // Takes the entry out of unserved and says what was held behind it. Nothing happens if this
  // member said nothing under that name.
  void serve(const std::string& name, Effects& effects, const std::optional<Error>& error);
  // The name and the agreed spec of an entry; notes its id.
  std::pair<std::string, SpecPtr> learn(const PlannedEntry& planned);

  const int index_;
  const std::vector<int> ranks_;
  const int size_;
  bool leaving_ = false;
  bool leaving_said_ = false;
  std::optional<Ticket> join_ticket_;
  bool join_said_ = false;
  size_t held_ = 0;  // votes that are held back, over all names
  uint64_t applied_ = 0;
  bool ended_ = false;            // Bye was applied
  uint64_t batches_started_ = 0;  // also the sequence of the next one
  uint64_t batches_ended_ = 0;
  uint64_t drained_said_ = 0;
  std::vector<Item> news_;
  std::unordered_map<std::string, Unserved> unserved_;
  EntryIds ids_;
};

}  // namespace horon::core
