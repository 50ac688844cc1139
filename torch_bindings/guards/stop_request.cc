#include "horon/torch_bindings/guards/stop_request.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>

#include <ATen/ops/empty.h>

#include "horon/core/base/error.h"
#include "horon/core/base/log.h"
#include "horon/core/base/parse_number.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/call_counts.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/collectives.h"

namespace horon {

using core::concat;

namespace {

// What the handler of a signal knows. It may run on any thread, and calls nothing but sigaction().
struct NotedSignal {
  std::atomic<bool> is_taken = false;
  std::atomic<bool> has_come = false;
  std::atomic<bool> is_let_go = false;
  struct sigaction before = {};
};
static_assert(std::atomic<bool>::is_always_lock_free);
constinit std::array<NotedSignal, NSIG> noted_signals;

NotedSignal& noted(int number) { return noted_signals.at(static_cast<size_t>(number)); }

void note_signal(int number);

void give_back(int number) {
  struct sigaction now = {};
  ::sigaction(number, nullptr, &now);
  const bool is_own = (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == note_signal;
  if (is_own) ::sigaction(number, &noted(number).before, nullptr);
}

void note_signal(int number) {
  noted(number).has_come = true;
  if (noted(number).is_let_go) give_back(number);
}

std::string signal_text(int number) {
  constexpr std::array<std::pair<int, const char*>, 16> kNames = {{{SIGHUP, "SIGHUP"},
                                                                   {SIGINT, "SIGINT"},
                                                                   {SIGQUIT, "SIGQUIT"},
                                                                   {SIGILL, "SIGILL"},
                                                                   {SIGTRAP, "SIGTRAP"},
                                                                   {SIGABRT, "SIGABRT"},
                                                                   {SIGBUS, "SIGBUS"},
                                                                   {SIGFPE, "SIGFPE"},
                                                                   {SIGKILL, "SIGKILL"},
                                                                   {SIGUSR1, "SIGUSR1"},
                                                                   {SIGSEGV, "SIGSEGV"},
                                                                   {SIGUSR2, "SIGUSR2"},
                                                                   {SIGALRM, "SIGALRM"},
                                                                   {SIGTERM, "SIGTERM"},
                                                                   {SIGSTOP, "SIGSTOP"},
                                                                   {SIGXCPU, "SIGXCPU"}}};
  for (const auto& [known, name] : kNames) {
    if (known == number) return concat("signal ", number, " (", name, ")");
  }
  return concat("signal ", number);
}

template <class... Values>
[[noreturn]] void refuse_stop(const Values&... values) {
  throw Error(ErrorCode::InvalidArgument, concat("stop request: ", values...));
}

void take_signal(int number) {
  if (number < 1 || number >= NSIG) refuse_stop("there is no signal ", number);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
    if (number == fault) refuse_stop("no program can go on after ", signal_text(number));
  }
  NotedSignal& signal = noted(number);
  if (signal.is_taken.exchange(true)) {
    refuse_stop(signal_text(number),
                " is taken: another StopRequest has it, or `signals` names it ",
                "twice. Give it to one StopRequest, once");
  }
  signal.has_come = false;
  signal.is_let_go = false;
  struct sigaction own = {};
  own.sa_handler = note_signal;
  own.sa_flags = SA_RESTART;  // what it interrupts goes on
  if (::sigaction(number, &own, &signal.before) != 0) {
    const int why = errno;
    signal.is_taken = false;
    refuse_stop(signal_text(number), " can't be caught: ", std::strerror(why));
  }
}

void release_signals(const std::vector<int>& signals) {
  for (const int number : signals) {
    give_back(number);
    noted(number).is_taken = false;
  }
}

StopRequestOptions checked(StopRequestOptions options) {
  if (options.every < 1) refuse_stop("every is ", options.every, "; give 1 or more");
  if (options.after_seconds && !(*options.after_seconds >= 0)) {
    refuse_stop("after_seconds is ", *options.after_seconds, "; give 0 or more");
  }
  if (options.name.empty()) refuse_stop("the name is empty; give all ranks the same");
  return options;
}

// Why a rank wants to stop: one of these, or kSignal and the number of a signal. The greatest one
// is told.
enum Cause : int { kNone, kTimeLimit, kRequested, kSignal };

// A number and the rank that has it. Of all ranks' pairs the greatest one has the greatest number,
// and of those that have it the lowest rank.
struct OfRank {
  int64_t number;
  int rank;
};
constexpr int64_t kRanks = int64_t{1} << 31;

int64_t packed(OfRank pair) { return pair.number * kRanks + (kRanks - 1 - pair.rank); }
OfRank unpacked(int64_t value) {
  return {value >> 31, static_cast<int>(kRanks - 1 - (value & (kRanks - 1)))};
}

std::string text_of(OfRank cause, double limit) {
  if (cause.number == kNone) return {};
  if (cause.number == kTimeLimit) {
    return concat("the time limit of ", core::number_text(limit), " s");
  }
  const std::string what = cause.number == kRequested
                               ? "request()"
                               : signal_text(static_cast<int>(cause.number) - kSignal);
  return concat(what, " on rank ", cause.rank);
}

}  // namespace

namespace torch_detail {

NotedSignals::NotedSignals(const std::vector<int>& signals) {
  signals_.reserve(signals.size());
  try {
    for (const int number : signals) {
      take_signal(number);
      signals_.push_back(number);
    }
  } catch (...) {
    release_signals(signals_);
    throw;
  }
}

NotedSignals::~NotedSignals() { release_signals(signals_); }

int NotedSignals::greatest() const {
  int greatest = 0;
  for (const int number : signals_) {
    if (noted(number).has_come) greatest = std::max(greatest, number);
  }
  return greatest;
}

void NotedSignals::let_go() {
  for (const int number : signals_) {
    noted(number).is_let_go = true;
    if (noted(number).has_come) give_back(number);
  }
}

}  // namespace torch_detail

StopRequest::StopRequest(StopRequestOptions options)
    : options_(checked(std::move(options))), signals_(options_.signals) {}

bool StopRequest::check() {
  if (asks_now()) ask();
  ++calls_;
  return !reason_.empty();
}

// A join() ends for all ranks of the set at once, also for those that have missed calls.
bool StopRequest::asks_now() {
  const uint64_t joins = ops::call_counts().times_forgotten(options_.process_set.id());
  const std::pair here(ops::session_number(), joins);
  if (counted_in_ != here) calls_ = 0;
  counted_in_ = here;
  return calls_ % options_.every == 0;
}

int StopRequest::own_cause() const {
  if (const int number = signals_.greatest(); number != 0) return kSignal + number;
  if (requested_) return kRequested;
  const std::chrono::duration<double> past = std::chrono::steady_clock::now() - began_;
  return options_.after_seconds && past.count() >= *options_.after_seconds ? kTimeLimit : kNone;
}

void StopRequest::ask() {
  const int cause = own_cause();
  const double limit = cause == kTimeLimit ? *options_.after_seconds : 0;
  // What the ranks already know is sent again, for those that come back from join(). As integers,
  // the bits of doubles from 0 up have the order of the doubles.
  const std::array<int64_t, 4> own = {
      std::max(agreed_cause_, packed({cause, rank()})), packed({options_.every, rank()}),
      packed({-options_.every, rank()}), std::max(agreed_limit_, std::bit_cast<int64_t>(limit))};
  at::Tensor values = at::empty({own.size()}, at::kLong);
  std::copy(own.begin(), own.end(), values.mutable_data_ptr<int64_t>());
  allreduce_(values,
             {.name = options_.name, .op = ReduceOp::Max, .process_set = options_.process_set});
  const auto* const of_all = values.const_data_ptr<int64_t>();
  const OfRank most = unpacked(of_all[1]);
  const OfRank least = unpacked(of_all[2]);
  if (most.number != -least.number) {
    throw Error(ErrorCode::Mismatch,
                concat("\"", options_.name, "\": `every` is ", most.number, " on rank ", most.rank,
                       " and ", -least.number, " on rank ", least.rank,
                       ", so they would not ask at the same steps. Give all ranks the same"));
  }
  agreed_cause_ = of_all[0];
  agreed_limit_ = of_all[3];
  const bool is_new = reason_.empty();
  reason_ = text_of(unpacked(agreed_cause_), std::bit_cast<double>(agreed_limit_));
  if (reason_.empty()) return;
  signals_.let_go();
  // The lowest rank that was asked: all have the same `every`.
  if (is_new && most.rank == rank()) {
    core::log(core::LogLevel::Info, concat("the ranks stop together: ", reason_));
  }
}

}  // namespace horon
