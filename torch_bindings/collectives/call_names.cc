#include "horon/torch_bindings/collectives/call_names.h"

#include <condition_variable>
#include <mutex>
#include <unordered_map>

#include "horon/core/base/collective_ban.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/names_in_flight.h"

namespace horon::torch_detail {
namespace {

using core::concat;

struct Queue {
  uint64_t next_turn = 0;
  uint64_t serving = 0;
};

// On the heap for ever: a thread may still wait in it while the process ends.
struct Turns {
  std::mutex mutex;
  std::condition_variable moved;
  std::unordered_map<std::string, Queue> queues;  // of the names that are being called
};

Turns& turns() {
  static auto& all = *new Turns;
  return all;
}

template <class Count>
std::string given_or(const std::string& given, std::string_view kind, const Count& count) {
  // Before the call is counted: the other ranks don't make it, and their counts must stay alike.
  core::refuse_if_banned(given.empty() ? kind : given);
  if (!given.empty()) return given;
  if (!is_initialized()) return concat(kind, ".noname");  // the call itself tells that
  return concat(kind, ".noname.", count());
}

}  // namespace

std::string given_or_counted(const std::string& given, std::string_view kind, uint32_t set) {
  std::string name = given_or(given, kind, [&] { return ops::call_counts().next(kind, set); });
  // The numbers repeat: this call must not meet an older call under the same name.
  if (given.empty() && names_in_flight().has_counted())
    names_in_flight().wait_until_free(set, name);
  return name;
}

std::string given_or_counted_object(const std::string& given, std::string_view kind, uint32_t set) {
  return given_or(given, kind, [&] { return ops::call_counts().next_object(kind, set); });
}

std::string given_or_counted_called_object(const std::string& given, std::string_view kind,
                                           uint32_t set) {
  return given_or(given, kind, [&] { return ops::call_counts().next_called_object(kind, set); });
}

void refuse_call(const std::string& name, const ProcessSet& set, const std::string& text) {
  refuse_calls({name}, set, text);
}

void refuse_calls(const std::vector<std::string>& names, const ProcessSet& set,
                  const std::string& text) {
  refuse_calls(names, set, Error(ErrorCode::InvalidArgument, text));
}

void refuse_calls(const std::vector<std::string>& names, const ProcessSet& set,
                  const Error& error) {
  if (is_initialized() && set.includes_me()) {
    for (const std::string& name : names) ops::runtime().refuse(name, error.what(), set.id());
  }
  throw Error(error);
}

NameTurn::NameTurn(std::string name, uint32_t set) : key_(concat(set, " ", name)) {
  std::unique_lock lock(turns().mutex);
  const uint64_t turn = turns().queues[key_].next_turn++;
  turns().moved.wait(lock, [&] { return turns().queues[key_].serving == turn; });
}

NameTurn::~NameTurn() {
  {
    const std::lock_guard lock(turns().mutex);
    const auto queue = turns().queues.find(key_);
    if (++queue->second.serving == queue->second.next_turn) turns().queues.erase(queue);
  }
  turns().moved.notify_all();
}

BlockingCallName::BlockingCallName(const std::string& given, std::string_view kind, uint32_t set)
    : name_(given_or(given, kind, [&] {
        return ops::call_counts().next(kind, set, ops::CallCounts::kNumbersOfBlocking);
      })) {
  if (given.empty()) turn_.emplace(name_, set);
}

}  // namespace horon::torch_detail
