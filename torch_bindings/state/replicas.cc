#include "horon/torch_bindings/state/replicas.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon {
namespace {

using core::concat;

constexpr const char* kCall = "check_replicas_equal";
constexpr size_t kNamesShown = 5;

// Eight bytes at a time; each step is a bijection of the state, so that a single difference always
// shows.
class Hash {
 public:
  void add_word(uint64_t word) {
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15;
    state_ ^= state_ >> 32;
  }
  void add(const void* data, size_t bytes) {
    const auto* from = static_cast<const unsigned char*>(data);
    for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), from += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, from, sizeof(word));
      add_word(word);
    }
    uint64_t rest = bytes;
    for (size_t i = 0; i < bytes; ++i) rest = rest << 8 | from[i];
    add_word(rest);
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0x243f6a8885a308d3;
};

struct Item {
  std::string name;
  std::string kind;  // "float32 [3, 2]"
  uint64_t hash = 0;

  bool operator==(const Item&) const = default;
};

// What one rank says. It travels as text, each word with its length before it.
struct Report {
  std::vector<Item> items;
  std::string error;  // why this rank's call is wrong
};

Item describe(const std::string& name, const at::Tensor& tensor) {
  torch_detail::check_tensor(tensor, name);
  Item item{name,
            concat(to_string(torch_detail::data_type_of(tensor, name)),
                   tensor.is_complex() ? " (complex) " : " ", core::shape_text(tensor.sizes()))};
  const at::Tensor rows = torch_detail::row_major(tensor.detach().resolve_conj().resolve_neg());
  Hash hash;
  hash.add(item.kind.data(), item.kind.size());
  hash.add(rows.const_data_ptr(), rows.nbytes());
  item.hash = hash.value();
  return item;
}

Report report_on(const NamedTensors& tensors) {
  Report report;
  torch_detail::UniqueNames names;
  for (const auto& [name, tensor] : tensors) {
    try {
      if (names.add({name, tensor})) report.items.push_back(describe(name, tensor));
    } catch (const Error& error) {
      if (report.error.empty()) report.error = error.what();
    }
  }
  return report;
}

// The order of the tensors is not part of it.
uint64_t summary(const Report& report) {
  std::vector<const Item*> sorted;
  for (const Item& item : report.items) sorted.push_back(&item);
  std::sort(sorted.begin(), sorted.end(),
            [](const Item* a, const Item* b) { return a->name < b->name; });
  Hash hash;
  for (const Item* item : sorted) {
    hash.add(item->name.data(), item->name.size());
    hash.add_word(item->hash);
  }
  return hash.value();
}

std::string to_text(const Report& report) {
  std::ostringstream out;
  out << report.error.size() << ' ' << report.error;
  for (const Item& item : report.items) {
    out << item.hash << ' ' << item.kind.size() << ' ' << item.kind << item.name.size() << ' '
        << item.name;
  }
  return std::move(out).str();
}

std::string read_text(std::istringstream& in) {
  size_t length = 0;
  in >> length;
  in.get();
  std::string text(length, '\0');
  in.read(text.data(), static_cast<std::streamsize>(length));
  return text;
}

Report from_text(const std::string& text) {
  std::istringstream in(text);
  Report report;
  report.error = read_text(in);
  for (uint64_t hash = 0; in >> hash;) {
    Item item{.name = {}, .kind = read_text(in), .hash = hash};
    item.name = read_text(in);
    report.items.push_back(std::move(item));
  }
  return report;
}

std::string quoted_list(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamesShown); ++i) {
    text += concat(i == 0 ? "" : ", ", "\"", names[i], "\"");
  }
  if (names.size() > kNamesShown) text += concat(" and ", names.size() - kNamesShown, " more");
  return text;
}

using Index = std::map<std::string, const Item*>;

Index index_of(const Report& report) {
  Index index;
  for (const Item& item : report.items) index.emplace(item.name, &item);
  return index;
}

std::vector<std::string> names_missing(const Report& from, const Index& in) {
  std::vector<std::string> names;
  for (const Item& item : from.items) {
    if (!in.contains(item.name)) names.push_back(item.name);
  }
  return names;
}

// The first tensor of the lowest rank that another rank has too, with other content; empty if there
// is none.
std::string first_difference(const std::vector<Report>& reports, const std::vector<Index>& indices,
                             const std::vector<int>& ranks) {
  size_t differing = 0;
  std::string first;
  for (const Item& item : reports.front().items) {
    std::vector<int> others;
    std::string kinds;
    for (size_t r = 1; r < reports.size(); ++r) {
      const auto found = indices[r].find(item.name);
      if (found == indices[r].end() || *found->second == item) continue;
      others.push_back(ranks[r]);
      const std::string& kind = found->second->kind;
      if (kinds.empty() && kind != item.kind) {
        kinds =
            concat(" (", item.kind, " on rank ", ranks[0], ", ", kind, " on rank ", ranks[r], ")");
      }
    }
    if (others.empty() || ++differing > 1) continue;
    first = concat("tensor \"", item.name, "\" of rank ", ranks[0], " differs on rank",
                   others.size() == 1 ? " " : "s ", core::list_ranks(others), kinds);
  }
  if (differing > 1) first += concat("; ", differing, " tensors differ in all");
  return first;
}

std::string explain(const std::vector<Report>& reports, const std::vector<int>& ranks) {
  std::vector<Index> indices;
  for (const Report& report : reports) indices.push_back(index_of(report));
  std::string text = first_difference(reports, indices, ranks);
  const auto add = [&text](const std::string& more) {
    text += concat(text.empty() ? "" : "; ", more);
  };
  for (size_t r = 1; r < reports.size(); ++r) {
    const auto missing = names_missing(reports[0], indices[r]);
    const auto extra = names_missing(reports[r], indices[0]);
    if (!missing.empty()) {
      add(concat("rank ", ranks[r], " has no ", quoted_list(missing), ", which rank ", ranks[0],
                 " has"));
    }
    if (!extra.empty()) {
      add(concat("rank ", ranks[r], " has ", quoted_list(extra), ", which rank ", ranks[0],
                 " has not"));
    }
  }
  return text;
}

}  // namespace

void check_replicas_equal(const NamedTensors& tensors, const ProcessSet& process_set) {
  const torch_detail::PlainMode plain;
  const std::string name = torch_detail::given_or_counted({}, kCall, process_set.id());
  const Report own = report_on(tensors);
  const uint64_t words[] = {summary(own), own.error.empty() ? 1U : 0U};
  const std::string said(reinterpret_cast<const char*>(words), sizeof(words));
  bool alike = own.error.empty();
  for (const std::string& other :
       allgather_bytes(said, {.name = name, .process_set = process_set})) {
    alike = alike && other == said;
  }
  // A rank that is wrong says so to all, and ranks that differ see that they do: all go on here, or
  // none.
  if (alike) return;
  std::vector<Report> reports;
  const std::vector<int> ranks = process_set.ranks();
  for (const std::string& text :
       allgather_bytes(to_text(own), {.name = name + ".details", .process_set = process_set})) {
    reports.push_back(from_text(text));
    if (!reports.back().error.empty()) {
      throw Error(ErrorCode::InvalidArgument, concat(kCall, ": on rank ", ranks[reports.size() - 1],
                                                     ": ", reports.back().error));
    }
  }
  throw Error(ErrorCode::Mismatch, concat(kCall, ": ", explain(reports, ranks)));
}

}  // namespace horon
