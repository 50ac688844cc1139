#include "horon/torch_bindings/logging/reduced_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string_view>

#include "horon/core/base/error.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"

namespace horon::torch_detail {
namespace {

using core::concat;

constexpr std::array<std::string_view, 5> kReduceNames = {"Mean", "Sum", "Min", "Max", "First"};

template <class T>
void put(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void put_text(std::string& bytes, const std::string& text) {
  put(bytes, text.size());
  bytes += text;
}

class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : rest_(bytes) {}
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, take_bytes(sizeof(value)).data(), sizeof(value));
    return value;
  }
  std::string take_text() { return std::string(take_bytes(take<size_t>())); }
  bool is_empty() const { return rest_.empty(); }

 private:
  std::string_view take_bytes(size_t count) {
    HORON_CHECK(count <= rest_.size(), "a rank has sent a log message that is cut off");
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  std::string_view rest_;
};

std::string differences(const std::map<std::string, std::vector<int>>& groups) {
  std::string text;
  for (const auto& [value, ranks] : groups) {
    text += concat(text.empty() ? "" : ", ", value, " on ", core::name_ranks(ranks));
  }
  return text;
}

struct Sent {
  int rank;
  LogMessage message;
};

void require_same_step(const std::string& call, const std::vector<Sent>& all) {
  std::map<std::string, std::vector<int>> steps;
  for (const Sent& sent : all) steps[std::to_string(sent.message.step)].push_back(sent.rank);
  if (steps.size() <= 1) return;
  throw Error(ErrorCode::Mismatch,
              concat("\"", call, "\": the ranks flush different steps: ", differences(steps)));
}

// One rank writes, to its own paths: what others mean to write elsewhere would be lost in silence.
void require_paths_of_writer(const std::string& call, const std::vector<Sent>& all, int writer) {
  if (all.empty() || all.front().rank != writer) return;  // it has joined
  const std::vector<GivenPath>& own = all.front().message.paths;
  std::vector<Givers> lost;
  for (const Sent& sent : all) {
    for (const GivenPath& path : sent.message.paths) {
      const bool is_written = std::any_of(own.begin(), own.end(),
                                          [&](const GivenPath& one) { return one.is_same(path); });
      if (!is_written) add_giver(lost, path, sent.rank);
    }
  }
  if (lost.empty()) return;
  std::vector<Givers> written;
  for (const GivenPath& path : own) add_giver(written, path, writer);
  throw Error(
      ErrorCode::Mismatch,
      concat("\"", call, "\": only rank ", writer, " writes the log, but it has no sink for ",
             text_of(lost), "; it has ", own.empty() ? "none" : text_of(written),
             ". Give all ranks the same paths, or sinks to rank ", writer, " alone"));
}

std::string different_reductions(const std::string& call, const std::string& name,
                                 const std::vector<Sent>& all) {
  std::map<std::string, std::vector<int>> kinds;
  for (const Sent& sent : all) {
    for (const LoggedValue& value : sent.message.values) {
      if (value.name != name) continue;
      kinds[std::string(kReduceNames.at(static_cast<size_t>(value.reduce)))].push_back(sent.rank);
    }
  }
  return concat("\"", call, "\": the ranks reduce \"", name,
                "\" in different ways: ", differences(kinds));
}

}  // namespace

void combine(LoggedValue& into, double value, double weight) {
  const bool first = into.weight == 0;
  switch (into.reduce) {
    case Reduce::Mean:
    case Reduce::Sum:
      into.value += value;
      break;
    case Reduce::Min:
      if (first || value < into.value || std::isnan(value)) into.value = value;
      break;
    case Reduce::Max:
      if (first || value > into.value || std::isnan(value)) into.value = value;
      break;
    case Reduce::First:
      into.value = value;
      break;
  }
  into.weight += weight;
}

std::string to_bytes(const LogMessage& message) {
  std::string bytes;
  put(bytes, message.step);
  put(bytes, message.time);
  put_text(bytes, message.fault);
  put(bytes, message.paths.size());
  for (const GivenPath& path : message.paths) {
    put_text(bytes, path.written);
    put_text(bytes, path.absolute);
  }
  for (const LoggedValue& value : message.values) {
    put_text(bytes, value.name);
    put(bytes, value.reduce);
    put(bytes, value.value);
    put(bytes, value.weight);
  }
  return bytes;
}

LogMessage message_from(const std::string& bytes) {
  MessageReader reader(bytes);
  LogMessage message;
  message.step = reader.take<int64_t>();
  message.time = reader.take<double>();
  message.fault = reader.take_text();
  message.paths.resize(reader.take<size_t>());
  for (GivenPath& path : message.paths) {
    path.written = reader.take_text();
    path.absolute = reader.take_text();
  }
  while (!reader.is_empty()) {
    LoggedValue value;
    value.name = reader.take_text();
    value.reduce = reader.take<Reduce>();
    value.value = reader.take<double>();
    value.weight = reader.take<double>();
    message.values.push_back(std::move(value));
  }
  return message;
}

ReducedLog reduce_over_ranks(const std::string& call, const std::vector<std::string>& messages,
                             const std::vector<int>& ranks) {
  std::vector<Sent> all;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].empty()) all.push_back({ranks[i], message_from(messages[i])});
  }
  require_same_step(call, all);
  require_paths_of_writer(call, all, ranks.front());
  std::vector<LoggedValue> totals;
  std::map<std::string, size_t> places;
  std::set<std::string> left_out;
  ReducedLog reduced;
  for (const Sent& sent : all) {
    for (const LoggedValue& value : sent.message.values) {
      const auto [place, is_new] = places.emplace(value.name, totals.size());
      if (is_new) {
        totals.push_back(value);
        continue;
      }
      LoggedValue& total = totals[place->second];
      if (total.reduce != value.reduce) {
        left_out.insert(value.name);
        if (reduced.mismatch.empty()) {
          reduced.mismatch = different_reductions(call, value.name, all);
        }
        continue;
      }
      if (value.reduce != Reduce::First) combine(total, value.value, value.weight);
    }
  }
  LogRecord& record = reduced.record;
  if (!all.empty()) {
    record.step = all.front().message.step;
    record.time = all.front().message.time;
  }
  for (const Sent& sent : all) {
    if (!reduced.fault.empty() || sent.message.fault.empty()) continue;
    reduced.fault = concat("\"", call, "\": on rank ", sent.rank, ": ", sent.message.fault);
  }
  for (const LoggedValue& total : totals) {
    if (total.reduce == Reduce::Mean && total.weight == 0) continue;
    if (left_out.contains(total.name)) continue;
    record.values.emplace_back(
        total.name, total.reduce == Reduce::Mean ? total.value / total.weight : total.value);
  }
  return reduced;
}

}  // namespace horon::torch_detail
