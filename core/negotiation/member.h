// One rank's side of a process set: says what it has, applies the log (PROTOCOL.md, section 3).
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "horon/core/negotiation/effects.h"
#include "horon/core/negotiation/protocol.h"

namespace horon::core {

// What the program gives the controller for one entry.
struct Request {
  Ticket ticket = 0;
  std::string name;
  SpecPtr spec;
  std::vector<bool> absent;  // see Ready
};

class Member {
 public:
  Member(int rank, int size) : rank_(rank), size_(size) {}

  // A name that is unserved, or a call after join() or shutdown(), finishes with an error at once;
  // nothing is sent.
  void submit(Request request, Effects& effects);
  // The program's call was wrong here: let the others fail alike.
  void refuse(const std::string& name, const std::string& text);
  void join(Ticket ticket, Effects& effects);
  void shutdown();

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

 private:
  struct Unserved {
    bool refused = false;  // said as Refused: no ticket
    Request request;
    std::vector<Request> held;  // said after the refusal, sent when that is served
  };
  struct Known {
    EntryId id = kNoId;
    SpecPtr spec;
  };

  void say_ready(const Request& request);
  void apply(const Plan& plan, Effects& effects);
  void apply(const Fail& fail, Effects& effects);
  StartEntry start_entry(const PlannedEntry& planned, bool joined_here);
  // Takes the entry out of unserved and sends what was held behind it; false if this member said
  // nothing under that name.
  bool serve(const std::string& name, Effects& effects, const std::optional<Error>& error);
  const std::string& learn(const PlannedEntry& planned);

  const int rank_;
  const int size_;
  bool leaving_ = false;
  std::optional<Ticket> join_ticket_;
  uint64_t applied_ = 0;
  uint64_t next_sequence_ = 0;
  std::vector<Item> news_;
  std::unordered_map<std::string, Unserved> unserved_;
  std::unordered_map<std::string, Known> known_;
  std::unordered_map<EntryId, std::pair<std::string, SpecPtr>> by_id_;
};

}  // namespace horon::core
