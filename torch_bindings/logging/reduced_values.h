// Logged values on their way from rank to rank.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "horon/torch_bindings/collectives/agreed_path.h"
#include "horon/torch_bindings/logging/log_sink.h"
#include "horon/torch_bindings/logging/logger.h"

namespace horon::torch_detail {

// One name on one rank. Mean: `value` is the sum of weight * value.
struct LoggedValue {
  std::string name;
  Reduce reduce = Reduce::Mean;
  double value = 0;
  double weight = 0;
};

struct LogMessage {
  int64_t step = 0;
  double time = 0;               // on its clock, in seconds since 1970
  std::string fault;             // why the record before could not be written; empty: it was
  std::vector<GivenPath> paths;  // of its sinks; of a rank that does not write, the new ones
  std::vector<LoggedValue> values;
};

// Adds one more value to `into`. A NaN wins in Min and Max. First: the later one.
void combine(LoggedValue& into, double value, double weight);

std::string to_bytes(const LogMessage& message);
LogMessage message_from(const std::string& bytes);

struct ReducedLog {
  LogRecord record;
  std::string mismatch;  // the first name that is left out: ranks reduce it in different ways
  std::string fault;     // why a rank could not write the record before; empty: all could
};

// `messages[i]` is that of `ranks[i]`, ascending; empty bytes: this rank has joined. The first one
// writes. Throws Error(Mismatch) where ranks are at different steps, or have sinks for paths for
// which the rank that writes has none; the same on all ranks.
ReducedLog reduce_over_ranks(const std::string& call, const std::vector<std::string>& messages,
                             const std::vector<int>& ranks);

}  // namespace horon::torch_detail
