#include "horon/tests/support/simulation/transcript.h"

#include <memory>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

#include "horon/core/base/text.h"
#include "horon/tests/support/simulation/simulated_cluster.h"

namespace horon::simulation {
namespace {

using core::concat;

[[noreturn]] void unknown(const std::string& what) {
  throw std::invalid_argument(concat("a transcript says \"", what, "\", which is not known"));
}

// Whether the word is "key=value" with this key; sets the value.
bool has_key(const std::string& word, const std::string& key, std::string& value) {
  if (word.rfind(key + "=", 0) != 0) return false;
  value = word.substr(key.size() + 1);
  return true;
}

template <class Enum>
bool find_enumerator(const std::string& word, int count, Enum& to) {
  for (int i = 0; i < count; ++i) {
    if (to_string(static_cast<Enum>(i)) != word) continue;
    to = static_cast<Enum>(i);
    return true;
  }
  return false;
}

// "2x3"; empty for a scalar.
std::vector<int64_t> parse_shape(const std::string& text) {
  std::vector<int64_t> shape;
  std::istringstream in(text);
  for (std::string extent; std::getline(in, extent, 'x');) shape.push_back(std::stoll(extent));
  return shape;
}

// "2+1": ranks 0 and 1 are on one host, rank 2 on another.
std::vector<int> parse_hosts(const std::string& text) {
  std::vector<int> host_of;
  std::istringstream in(text);
  int host = 0;
  for (std::string on_host; std::getline(in, on_host, '+'); ++host) {
    host_of.insert(host_of.end(), std::stoul(on_host), host);
  }
  return host_of;
}

Nanos parse_seconds(const std::string& text) {
  return static_cast<Nanos>(std::stod(text) * static_cast<double>(kSecond));
}

class Player {
 public:
  std::vector<std::string> play(const std::string& line) {
    std::istringstream in(line);
    std::string command;
    in >> command;
    std::vector<std::string> words;
    for (std::string word; in >> word;) words.push_back(word);
    if (command == "ranks") return start(words);
    if (cluster_ == nullptr) unknown(concat(command, " before ranks"));
    if (command == "deliver") return deliver(words);
    if (command == "open") return open();
    if (command == "messages") return messages();
    if (command == "pass") return pass(words);
    waits_for_more_ = words.size() > 1 && words.back() == "+";
    for (const int rank : ranks(words.at(0))) obey(command, rank, words);
    return cluster_->take_trace();
  }

 private:
  std::vector<int> ranks(const std::string& text) const {
    std::vector<int> out;
    std::istringstream in(text);
    if (text == "all") {
      for (int rank = 0; rank < cluster_->size(); ++rank) out.push_back(rank);
      return out;
    }
    for (std::string rank; std::getline(in, rank, ',');) out.push_back(std::stoi(rank));
    return out;
  }

  std::vector<std::string> start(const std::vector<std::string>& words) {
    now_ = 0;
    SimulatedCluster::Options options;
    options.trace = true;
    core::Controller::Options& controller = options.controller;
    for (size_t i = 1; i < words.size(); ++i) {
      std::string value;
      if (has_key(words[i], "fusion", value)) {
        controller.fusion_bytes_max = std::stoll(value);
      } else if (has_key(words[i], "alone", value)) {
        controller.alone_bytes = std::stoll(value);
      } else if (has_key(words[i], "inflight", value)) {
        controller.batches_in_flight_max = std::stoi(value);
      } else if (has_key(words[i], "dead", value)) {
        controller.dead_after = parse_seconds(value);
      } else if (has_key(words[i], "stall", value)) {
        controller.stall_warn_after = parse_seconds(value);
      } else if (has_key(words[i], "abort", value)) {
        controller.stall_abort_after = parse_seconds(value);
      } else if (has_key(words[i], "freeze", value)) {
        options.gate = true;
        controller.freeze_after = std::stoi(value);
      } else if (has_key(words[i], "hosts", value)) {
        controller.host_of = parse_hosts(value);
      } else if (has_key(words[i], "thaw", value)) {
        controller.thaw_after = parse_seconds(value);
      } else {
        unknown(words[i]);
      }
    }
    const auto size = static_cast<size_t>(std::stoi(words.at(0)));
    cluster_ = std::make_unique<SimulatedCluster>(options, std::vector<Program>(size));
    for (int rank = 0; rank < cluster_->size(); ++rank) cluster_->tick(rank, 0);
    return {};
  }

  void obey(const std::string& command, int rank, const std::vector<std::string>& words) {
    if (command == "submit") {
      call(rank, parse_submit(words));
    } else if (command == "refuse") {
      call(rank, refuse(words.at(1)));
    } else if (command == "join") {
      call(rank, join());
    } else if (command == "shutdown") {
      call(rank, shutdown());
    } else if (command == "tick") {
      now_ = parse_seconds(words.at(1));
      cluster_->tick(rank, now_);
    } else if (command == "go") {
      while (cluster_->can_append(rank)) cluster_->append(rank);
      return;
    } else if (command == "look") {
      // The rank reads the ring, as always when it does anything.
    } else if (command == "fail") {
      cluster_->fail(rank, Error(ErrorCode::OperationFailed, words.at(1)));
    } else if (command == "die") {
      cluster_->die(rank);
    } else if (command == "finish") {
      while (cluster_->can_finish(rank)) {
        cluster_->finish(rank);
        if (words.at(0) != "all") break;
      }
    } else {
      unknown(command);
    }
    if (!waits_for_more_) cluster_->flush(rank);
  }

  void call(int rank, Action action) {
    const std::vector<std::string> before = cluster_->take_trace();
    cluster_->add_action(rank, std::move(action));
    cluster_->act(rank);
    std::vector<std::string> lines = cluster_->take_trace();
    lines.erase(lines.begin());  // the command says it already
    for (const std::string& line : before) cluster_->note(line);
    for (const std::string& line : lines) cluster_->note(line);
  }

  static Action parse_submit(const std::vector<std::string>& words) {
    auto spec = std::make_shared<core::EntrySpec>();
    std::vector<bool> absent;
    std::vector<int64_t> shape = {4};
    const std::string& name = words.at(1);
    for (size_t i = 2; i < words.size(); ++i) {
      const std::string& word = words[i];
      std::string value;
      if (word == "+") continue;
      if (find_enumerator(word, kCollectiveKindCount, spec->kind) ||
          find_enumerator(word, kDataTypeCount, spec->dtype) ||
          find_enumerator(word, kReduceOpCount, spec->reduce_op) ||
          find_enumerator(word, kDeviceKindCount, spec->device)) {
        continue;
      }
      if (has_key(word, "shape", value)) {
        shape = parse_shape(value);
      } else if (has_key(word, "root", value)) {
        spec->root = std::stoi(value);
      } else if (has_key(word, "prescale", value)) {
        spec->prescale = std::stod(value);
      } else if (has_key(word, "postscale", value)) {
        spec->postscale = std::stod(value);
      } else if (has_key(word, "absent", value)) {
        for (const char flag : value) absent.push_back(flag == '1');
      } else if (has_key(word, "part", value)) {
        const size_t colon = value.find(':');
        spec->parts.push_back({value.substr(0, colon), parse_shape(value.substr(colon + 1))});
      } else {
        unknown(word);
      }
    }
    const bool no_parts = spec->parts.empty() && spec->kind != CollectiveKind::Barrier;
    if (no_parts) spec->parts.push_back({name, shape});
    return submit(name, spec, absent);
  }

  std::vector<std::string> deliver(const std::vector<std::string>& words) {
    if (words.at(0) != "all") {
      const int from = std::stoi(words.at(0));
      const int to = std::stoi(words.at(1));
      for (int count = words.size() > 2 ? std::stoi(words[2]) : 1; count > 0; --count) {
        if (!cluster_->channels().contains({from, to})) return {"(nothing is on its way)"};
        cluster_->deliver(from, to);
      }
      cluster_->flush(to);
      return cluster_->take_trace();
    }
    deliver_all();
    return cluster_->take_trace();
  }

  void deliver_all() {
    while (cluster_->any_message()) {
      const auto [from, to] = cluster_->channels().begin()->first;
      cluster_->deliver(from, to);
      // What has arrived is read before anything is decided.
      if (!cluster_->channels().contains({from, to})) cluster_->flush(to);
    }
  }

  std::vector<std::string> pass(const std::vector<std::string>& words) {
    std::vector<std::string> lines;
    for (const Nanos end = now_ + parse_seconds(words.at(0)); now_ < end;) {
      now_ += kSecond / 2;
      for (int rank = 0; rank < cluster_->size(); ++rank) {
        cluster_->tick(rank, now_);
        cluster_->flush(rank);
      }
      deliver_all();
      const std::string time = concat("t=", static_cast<double>(now_) / kSecond, " s  ");
      for (const std::string& line : cluster_->take_trace()) {
        if (line.ends_with(": Ping") || line.ends_with(": Pong")) continue;
        lines.push_back(time + line);
      }
    }
    return lines;
  }

  // So far.
  std::vector<std::string> messages() const {
    uint64_t sent = 0;
    for (int rank = 0; rank < cluster_->size(); ++rank) {
      sent += cluster_->rank(rank).controller->statistics().control_messages_sent;
    }
    return {concat(sent, " messages")};
  }

  std::vector<std::string> open() const {
    std::vector<std::string> lines;
    for (const auto& [name, missing] :
         cluster_->rank(0).controller->coordinator()->open_entries()) {
      lines.push_back(concat(name, " waits for rank ", core::list_ranks(missing)));
    }
    if (lines.empty()) lines.push_back("(nothing)");
    return lines;
  }

  std::unique_ptr<SimulatedCluster> cluster_;
  bool waits_for_more_ = false;
  Nanos now_ = 0;
};

}  // namespace

std::string run_transcript(const std::string& text) {
  Player player;
  std::istringstream in(text);
  std::string out;
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("  ", 0) == 0) continue;
    out += line + "\n";
    if (line.empty() || line.front() == '#') continue;
    for (const std::string& answer : player.play(line)) out += concat("  ", answer, "\n");
  }
  return out;
}

}  // namespace horon::simulation
