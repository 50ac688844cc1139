// Runs a simulated cluster under a seed and a virtual clock: messages take random times but keep
// their order in each pair, ranks wake up late and read several messages at once, collectives end
// at different times on different ranks.
#pragma once

#include <cstdint>
#include <map>
#include <queue>
#include <random>
#include <vector>

#include "horon/tests/support/simulation/simulated_cluster.h"

namespace horon::simulation {

// A fault of one rank.
struct Fault {
  // Die: the rank dies between two events. DieSending: it dies once it has handed over a part of
  // the messages that it sends to several ranks at once; if it never does, it lives.
  enum class Kind { Freeze, Die, DieSending, Fail };
  Kind kind = Kind::Freeze;
  int rank = 0;
  Nanos at = 0;
  Nanos duration = 0;  // Freeze
  size_t sent = 0;     // DieSending: how many of those messages still leave
};

class TimedRun {
 public:
  struct Options {
    uint64_t seed = 0;
    Nanos latency_max = kMillisecond;    // of a message
    Nanos wake_max = kMillisecond / 10;  // from news to a look at it
    Nanos batch_max = 2 * kMillisecond;  // a collective, after the last rank has started it
    Nanos tick_every = kSecond / 2;
    std::vector<Fault> faults;
  };

  TimedRun(SimulatedCluster& cluster, const Options& options);

  // Runs until nothing happens any more.
  void run();
  // The same piece by piece, for a driver of several runs. over(): nothing happens any more.
  // next_time(): when the next event is due. step() takes that event.
  bool over() const;
  Nanos next_time() const { return events_.top().time; }
  void step();
  // Makes a rank fail or die from outside, not before `now`.
  void fail(int rank, const Error& error, Nanos now);
  void die(int rank, Nanos now);
  // Ticks for `time` more, in which ranks at rest must send nothing. Returns the number of
  // messages.
  size_t rest(Nanos time);

  Nanos now() const { return now_; }
  // When something last happened; Pings, Pongs and stall reports do not count.
  Nanos last_progress() const { return last_progress_; }
  // When a rank last called shutdown(), and when a batch last ended.
  Nanos last_shutdown() const { return last_shutdown_; }
  Nanos last_batch_end() const { return last_batch_end_; }
  // Faults that came when every rank had called shutdown() and batches still ran.
  int faults_at_the_end() const { return faults_at_the_end_; }
  // For how long nothing had happened (Pings, Pongs and stall reports do not count) when the first
  // rank ended by an error; 0 if none has.
  Nanos silence_before_fatal() const { return silence_before_fatal_; }

 private:
  enum class Kind : uint8_t { Wake, Arrive, Finish, Append, Tick, Fault, MoveAgain };
  struct Event {
    Nanos time;
    uint64_t order;
    Kind kind;
    int rank;
    int from;  // Arrive: the sender; Fault: which one of options_.faults
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };
  struct Rank {
    std::vector<int> inbox;  // the senders of the messages that have arrived, in order
    int finishes = 0;        // batches that may be over
    bool awake = false;      // a Wake is scheduled
    Nanos frozen_until = 0;
    Nanos thinks_until = 0;
    Nanos last_finish = 0;
  };

  static Nanos quiet_time(const core::Controller::Options& limits, const Options& options);
  void schedule(Nanos time, Kind kind, int rank, int from = -1);
  Nanos random_time(Nanos max);
  void handle(const Event& event);
  void wake_soon(int rank);
  void wake(int rank);
  void run_program(int rank);
  void after_flush();
  void append(int rank);
  void strike(const Fault& fault);
  void note_progress();

  SimulatedCluster& cluster_;
  const Options options_;
  const Nanos quiet_;  // when nothing has happened for so long, nothing will happen
  std::mt19937_64 random_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, Nanos> last_arrival_;
  uint64_t next_order_ = 0;
  size_t busy_events_ = 0;  // all but ticks
  Nanos now_ = 0;
  uint64_t progress_ = 0;
  Nanos last_progress_ = 0;
  bool ended_ = false;
  int faults_at_the_end_ = 0;
  Nanos last_shutdown_ = 0;
  Nanos last_batch_end_ = 0;
  Nanos silence_before_fatal_ = 0;
};

}  // namespace horon::simulation
