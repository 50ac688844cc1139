#include "horon/torch_bindings/python/process_group/call_line.h"

#include <algorithm>

#include "horon/core/base/error.h"

namespace horon::python::process_group {

CallLine::Turn::Turn(CallLine& line, const Operation& operation) : line_(line) {
  {
    const std::lock_guard lock(line.mutex_);
    const auto me = std::this_thread::get_id();
    if (std::any_of(line.calls_.begin(), line.calls_.end(),
                    [me](const Call& call) { return call.thread == me; })) {
      throw Error(ErrorCode::InvalidArgument,
                  "a signal handler has called a collective of a group while a call of that group "
                  "was about to begin on this thread; let the handler set a flag that the program "
                  "looks at between two calls, or use a group of its own there");
    }
    number_ = line.next_++;
    line.calls_.push_back({number_, me});
  }
  try {
    operation.wait_for_turn([&](std::chrono::nanoseconds limit) {
      std::unique_lock lock(line.mutex_);
      return line.moved_.wait_for(lock, limit, [&] { return line.is_first(number_); });
    });
  } catch (...) {
    line.leave(number_);
    throw;
  }
}

CallLine::Turn::~Turn() { line_.leave(number_); }

void CallLine::leave(uint64_t number) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(calls_, [number](const Call& call) { return call.number == number; });
  }
  moved_.notify_all();
}

}  // namespace horon::python::process_group
