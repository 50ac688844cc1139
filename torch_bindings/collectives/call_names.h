// Names of collectives that the program does not name, and names that are used again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/ops/session/process_set.h"

namespace horon::torch_detail {

// `given`, or if that is empty "kind.noname.N", counted in the order of the calls on each process
// set, anew in each session and after each join(): the ranks that have joined may have missed
// calls. Any thread.
std::string given_or_counted(const std::string& given, std::string_view kind, uint32_t set);

// The same for an object that keeps its name, also after a join(): no object gets the name of
// another one. Counted in the order in which the ranks ask for it, the same on all of them.
std::string given_or_counted_object(const std::string& given, std::string_view kind, uint32_t set);
// The same at the object's first call: see ops::CallCounts::next_called_object().
std::string given_or_counted_called_object(const std::string& given, std::string_view kind,
                                           uint32_t set);

// Throws Error(InvalidArgument) with this text. The call fails with it under its name on the other
// ranks of the set as well, which would wait for this one otherwise.
[[noreturn]] void refuse_call(const std::string& name, const ProcessSet& set,
                              const std::string& text);
// The same of a call that would begin several collectives: all their names fail there.
[[noreturn]] void refuse_calls(const std::vector<std::string>& names, const ProcessSet& set,
                               const std::string& text);
// The same with an error of any code.
[[noreturn]] void refuse_calls(const std::vector<std::string>& names, const ProcessSet& set,
                               const Error& error);

// While it lives, one call has a name to itself: a second call of the same name and process set
// waits until the first has ended. So a name that is used again (a forward that is recomputed, two
// backwards through one graph) is never in flight twice on a rank, and the n-th call of one rank
// meets the n-th of the others. Calls get the name in their order. Any thread.
class NameTurn {
 public:
  NameTurn(std::string name, uint32_t set);
  ~NameTurn();
  NameTurn(const NameTurn&) = delete;
  NameTurn& operator=(const NameTurn&) = delete;

 private:
  const std::string key_;
};

// The name of a call that returns when it has ended: as given_or_counted(), but with few numbers,
// since a thread makes one such call at a time. While this lives, a counted name is the call's
// alone: a call of another thread that gets the same name waits in the constructor.
class BlockingCallName {
 public:
  BlockingCallName(const std::string& given, std::string_view kind, uint32_t set);
  const std::string& get() const { return name_; }

 private:
  const std::string name_;
  std::optional<NameTurn> turn_;
};

}  // namespace horon::torch_detail
