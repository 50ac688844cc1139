// The receives from any rank that are under way on this rank.
//
// Each source is asked for its next message (Controller::seek()): its runtime answers as soon as
// the program there has sent it. The answer does not consume the message: the receive then takes it
// as an ordinary message between the two ranks. A source that is asked in vain only remembers the
// question. Belongs to whoever holds the seat.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "horon/core/base/config.h"
#include "horon/core/base/error.h"
#include "horon/core/negotiation/effects.h"
#include "horon/core/runtime/open_receive.h"

namespace horon::core {

class Reaper;
class SetRunner;

class OpenReceives {
 public:
  // `runner_of` gives the runner of a pair of this rank; not called after finish_all(). The runners
  // and all that is passed here outlive this.
  OpenReceives(const Config& config, int rank, Reaper* reaper,
               std::function<SetRunner*(uint32_t set)> runner_of);

  void add(std::shared_ptr<OpenReceive> receive, Submission&& submission, Nanos now);
  // An answer from the other rank of this pair.
  void note(uint32_t set, const Found& found);
  // A receive that names its source may have taken that source's next message.
  void renew(uint32_t set);
  // Starts the receives that have found their message. True if anything happened.
  bool settle();
  // Ends all receives with this error, and those that come later.
  void finish_all(const Error& error) noexcept;

  // settle() and look() have nothing to do.
  bool idle() const { return receives_.empty() && stall_text_.empty(); }
  // Logs the warnings that are due and renews stall_text(). True if the text has changed. Call it
  // in each turn.
  bool look(Nanos now);
  // Who waits for what; empty while nobody waits long.
  const std::string& stall_text() const { return stall_text_; }
  // The error that ends the job, if a receive has waited too long (HORON_STALL_ABORT_S).
  std::optional<Error> overdue(Nanos now) const;

 private:
  struct Receive {
    std::shared_ptr<OpenReceive> open;
    Submission submission;
    std::vector<SetRunner*> runners;  // by source
    std::vector<bool> gone;           // sources that send nothing more
    Nanos since = 0;
    Nanos next_warning = 0;
  };
  struct Question {
    enum class State : uint8_t { Asked, Found, Gone };
    uint64_t number = 0;
    State state = State::Asked;
  };
  // True if the receive has ended or has found its message: then it is in the list no longer.
  bool advance(std::list<Receive>::iterator receive, size_t source);
  void start(std::list<Receive>::iterator receive, size_t source, const std::string& name);
  void fail(std::list<Receive>::iterator receive, const Error& error) noexcept;
  void expect(const Receive& receive, int change);
  void forgive_gap(Nanos now);
  std::string text_of(const Receive& receive, Nanos now) const;

  const int rank_;
  const Nanos warn_after_;   // 0: never
  const Nanos abort_after_;  // 0: never
  Reaper* const reaper_;
  const std::function<SetRunner*(uint32_t set)> runner_of_;
  std::list<Receive> receives_;  // the oldest first
  // By set and name: the latest question about it, until its answer is used. Each source has one
  // for each tag.
  std::map<std::pair<uint32_t, std::string>, Question> questions_;
  std::set<uint32_t> touched_;  // sets of which there is news
  std::optional<Error> closed_;
  Nanos turned_at_ = 0;  // when look() was called last, which is in each turn while it is not idle
  Nanos looked_at_ = 0;
  bool fewer_ = false;  // receives have ended since then
  std::string stall_text_;
};

}  // namespace horon::core
