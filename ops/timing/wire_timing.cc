#include "horon/ops/timing/wire_timing.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/keep_for_ever.h"
#include "horon/core/base/text.h"
#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/ops/timing/median.h"

namespace horon::ops {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTimingTag = Messages::kFirstBlockTag;
// The first round makes the connection.
constexpr size_t kShortRounds = 12;
constexpr size_t kShortRoundsNeeded = 3;
constexpr int kLongRounds = 6;
constexpr int64_t kMessagesMax = 8;
// In each round the leading rank first sends how many long messages follow each way; this: no more.
constexpr int64_t kRoundsOver = -1;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// Owns all that messages under way may still read and write.
class TimedLine {
 public:
  TimedLine(std::shared_ptr<Messages> messages, int peer, const WireTiming::Limits& limits)
      : messages_(std::move(messages)),
        peer_(peer),
        limits_(limits),
        out_(static_cast<size_t>(kMessageBytes)),
        in_(static_cast<size_t>(kMessageBytes * kMessagesMax)) {}

  void send_number(int64_t number) {
    number_out_ = number;
    under_way_.push_back(messages_->send(
        peer_, kTimingTag, reinterpret_cast<const std::byte*>(&number_out_), sizeof number_out_));
    await();
  }
  int64_t receive_number() {
    under_way_.push_back(messages_->receive(
        peer_, kTimingTag, reinterpret_cast<std::byte*>(&number_in_), sizeof number_in_));
    await();
    return number_in_;
  }
  void exchange(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      under_way_.push_back(
          messages_->receive(peer_, kTimingTag + 1, in_.data() + i * kMessageBytes, kMessageBytes));
    }
    for (int64_t i = 0; i < count; ++i) {
      under_way_.push_back(messages_->send(peer_, kTimingTag + 1, out_.data(), kMessageBytes));
    }
    await();
  }
  bool has_messages_under_way() const { return !under_way_.empty(); }

 private:
  void await() {
    const auto limit = Clock::now() + limits_.answer;
    while (!under_way_.empty()) {
      messages_->progress();
      std::erase_if(under_way_, [&](auto id) { return messages_->take_if_over(id); });
      if (under_way_.empty()) return;
      if (Clock::now() > limit) give_up();
      std::this_thread::yield();
    }
  }
  [[noreturn]] void give_up() const {
    const double s = std::chrono::duration<double>(limits_.answer).count();
    throw Error(
        ErrorCode::PeerDead,
        core::concat(
            "while init() measured the network, rank ", peer_, " has not answered for ", s,
            " s: look at its host and its cable (HORON_MEASURE=off skips the measurement)"));
  }

  const std::shared_ptr<Messages> messages_;
  const int peer_;
  const WireTiming::Limits limits_;
  const std::vector<std::byte> out_;
  std::vector<std::byte> in_;
  int64_t number_out_ = 0;
  int64_t number_in_ = 0;
  std::vector<Messages::Id> under_way_;
};

void answer_messages(TimedLine& line) {
  for (int64_t count = line.receive_number(); count != kRoundsOver; count = line.receive_number()) {
    if (count == 0) {
      line.send_number(0);
    } else {
      line.exchange(count);
    }
  }
}

// Microseconds of one way.
std::vector<double> time_short(TimedLine& line, Clock::time_point limit) {
  std::vector<double> ways;
  for (size_t round = 0; round < kShortRounds; ++round) {
    if (round >= kShortRoundsNeeded && Clock::now() > limit) break;
    const auto begin = Clock::now();
    line.send_number(0);
    (void)line.receive_number();
    ways.push_back(us_since(begin) / 2);
  }
  return ways;
}

// The rate of the rounds with most messages. A connection gets faster when it has sent for a while,
// and a link that lets a burst pass at once carries the rest more slowly. The shorter rounds, which
// come first, use up both effects.
double time_long(TimedLine& line, double message_us, Clock::time_point limit) {
  std::vector<double> longest_us;
  int64_t longest_count = 0;
  int64_t count = 1;
  double last_us = 0;
  for (int round = 0; round < kLongRounds; ++round) {
    const auto begin = Clock::now();
    // The next round may take twice as long as the last, and must end soon after the limit.
    const bool late = begin + std::chrono::microseconds(static_cast<int64_t>(last_us)) > limit;
    if (round > 0 && late) break;
    line.send_number(count);
    line.exchange(count);
    last_us = us_since(begin);
    // The peer begins when it knows the number, and its messages have the same way.
    const double flows_us = std::max(last_us - 2 * message_us, last_us / 4);
    if (count > longest_count) longest_us.clear();
    longest_count = count;
    longest_us.push_back(flows_us);
    count = std::min(2 * count, kMessagesMax);
  }
  return static_cast<double>(longest_count * kMessageBytes) / median(longest_us);
}

std::optional<WireTiming::Times> measure_line(TimedLine& line, bool leads,
                                              std::chrono::microseconds begins) {
  if (!leads) {
    answer_messages(line);
    return std::nullopt;
  }
  const auto limit = Clock::now() + begins;
  const double message_us = median(time_short(line, limit));
  const double rate = time_long(line, message_us, limit);
  line.send_number(kRoundsOver);
  return WireTiming::Times{message_us, rate};
}

}  // namespace

std::optional<WireTiming::Times> WireTiming::measure(std::shared_ptr<Messages> messages, int peer,
                                                     bool leads, const Limits& limits) {
  const auto line = std::make_shared<TimedLine>(std::move(messages), peer, limits);
  try {
    return measure_line(*line, leads, limits.begins);
  } catch (...) {
    // A peer that goes on later sends what this rank has asked for, and it arrives whenever this
    // rank calls MPI.
    if (line->has_messages_under_way()) core::keep_for_ever(line);
    throw;
  }
}

}  // namespace horon::ops
