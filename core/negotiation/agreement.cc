#include "horon/core/negotiation/agreement.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "horon/core/base/rank_names.h"
#include "horon/core/base/same_real.h"
#include "horon/core/base/text.h"

namespace horon::core {
namespace {

bool shapes_agree(const EntrySpec& spec, const std::vector<int64_t>& a,
                  const std::vector<int64_t>& b) {
  if (!has_own_rows(spec.kind)) return a == b;
  return a.size() == b.size() && (a.empty() || std::equal(a.begin() + 1, a.end(), b.begin() + 1));
}

// Which part of which entry.
struct Where {
  std::string_view entry;
  size_t part = 0;
};

std::string kind_text(const EntrySpec& s, Where) { return std::string(to_string(s.kind)); }
std::string dtype_text(const EntrySpec& s, Where) { return std::string(to_string(s.dtype)); }
std::string op_text(const EntrySpec& s, Where) { return std::string(to_string(s.reduce_op)); }
std::string device_text(const EntrySpec& s, Where) { return std::string(to_string(s.device)); }
std::string root_text(const EntrySpec& s, Where) { return concat(s.root); }
std::string prescale_text(const EntrySpec& s, Where) { return real_text(s.prescale); }
std::string postscale_text(const EntrySpec& s, Where) { return real_text(s.postscale); }
std::string compression_text(const EntrySpec& s, Where) {
  return std::string(to_string(s.compression));
}
std::string pieces_text(const EntrySpec& s, Where) { return std::to_string(s.piece_bytes); }
std::string capture_text(const EntrySpec& s, Where) {
  return s.captured ? "captured" : "not captured";
}
std::string splits_text(const EntrySpec& s, Where) {
  return s.splits.empty() ? "even" : shape_text(s.splits);
}
std::string division_text(const EntrySpec& s, Where) {
  return s.as_one ? "of all tensors as one" : "of each tensor";
}
std::string parts_text(const EntrySpec& s, Where) { return concat(s.parts.size()); }
std::string name_text(const EntrySpec& s, Where at) { return s.parts.at(at.part).name; }

// Where the name of a part ends, if a remark about the call follows it; else npos. A remark follows
// the entry's own name, with an index if there are several: "loss.2 (mean of 10 classes)". Other
// names are the program's, parentheses included; only a remark about strides follows them.
size_t end_of_bare_name(std::string_view name, std::string_view entry) {
  if (!name.ends_with(')')) return std::string::npos;
  if (!name.starts_with(entry)) return name.rfind(kStridesRemark);
  size_t end = entry.size();
  if (name.substr(end).starts_with('.')) {
    end = std::min(name.find_first_not_of("0123456789", end + 1), name.size());
  }
  return name.substr(end).starts_with(" (") ? end : std::string::npos;
}
std::string bare_name_text(const EntrySpec& s, Where at) {
  const std::string& name = s.parts.at(at.part).name;
  return name.substr(0, end_of_bare_name(name, at.entry));
}
std::string remark_text(const EntrySpec& s, Where at) {
  const std::string& name = s.parts.at(at.part).name;
  const size_t end = end_of_bare_name(name, at.entry);
  return end == std::string::npos ? concat("a plain ", to_string(s.kind)) : name.substr(end + 1);
}

std::string part_shape_text(const EntrySpec& s, Where at) {
  const std::vector<int64_t>& shape = s.parts.at(at.part).shape;
  if (!has_own_rows(s.kind) || shape.empty()) return shape_text(shape);
  const std::string rest = shape_text(std::span(shape).subspan(1));
  return concat("[*", rest.size() > 2 ? ", " : "", rest.substr(1));
}

// One thing that must be equal: what it is called and how it reads.
struct Field {
  std::string_view what;
  std::string (*text)(const EntrySpec&, Where at);
};

constexpr std::array<Field, 12> entry_fields = {{{"collective", kind_text},
                                                 {"dtype", dtype_text},
                                                 {"device", device_text},
                                                 {"reduce op", op_text},
                                                 {"root", root_text},
                                                 {"prescale", prescale_text},
                                                 {"postscale", postscale_text},
                                                 {"compression", compression_text},
                                                 {"piece bytes", pieces_text},
                                                 {"capture in a CUDA graph", capture_text},
                                                 {"division", division_text},
                                                 {"number of tensors", parts_text}}};
constexpr Field call_field = {"call", remark_text};
constexpr std::array<Field, 3> part_fields = {
    {{"tensor name", name_text}, call_field, {"shape", part_shape_text}}};
// Compared after the shapes: splits add up to the rows, so they differ where the rows do.
constexpr Field splits_field = {"splits", splits_text};

using Specs = std::span<const std::pair<int, SpecPtr>>;

bool differs(const Field& field, Where at, Specs specs) {
  const std::string first = field.text(*specs.front().second, at);
  return std::any_of(specs.begin() + 1, specs.end(),
                     [&](const auto& said) { return field.text(*said.second, at) != first; });
}

// "float32 on ranks 0 and 2, float64 on rank 1"
std::string values(const Field& field, Where at, Specs specs) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const auto& [rank, spec] : specs) {
    std::string text = field.text(*spec, at);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& known) { return known.first == text; });
    if (group == groups.end()) {
      group = groups.emplace(groups.end(), std::move(text), std::vector<int>());
    }
    group->second.push_back(rank);
  }
  constexpr size_t shown_max = 4;
  std::string out;
  for (size_t i = 0; i < std::min(groups.size(), shown_max); ++i) {
    const auto& [text, ranks] = groups[i];
    out += concat(i > 0 ? ", " : "", text, " on ", name_ranks(ranks));
  }
  if (groups.size() > shown_max) out += concat(", and ", groups.size() - shown_max, " more values");
  return out;
}

}  // namespace

bool agree(const EntrySpec& a, const EntrySpec& b) {
  if (a.kind != b.kind || a.dtype != b.dtype || a.reduce_op != b.reduce_op ||
      a.device != b.device || a.root != b.root || !same_real(a.prescale, b.prescale) ||
      !same_real(a.postscale, b.postscale) || a.compression != b.compression ||
      a.piece_bytes != b.piece_bytes || a.captured != b.captured || a.as_one != b.as_one ||
      a.splits != b.splits || a.parts.size() != b.parts.size()) {
    return false;
  }
  for (size_t i = 0; i < a.parts.size(); ++i) {
    if (a.parts[i].name != b.parts[i].name) return false;
    if (!shapes_agree(a, a.parts[i].shape, b.parts[i].shape)) return false;
  }
  return true;
}

std::string disagreement(const std::string& name, Specs specs) {
  const auto text_of = [&](const Field& field) {
    return concat("tensor \"", name, "\": the ranks disagree about the ", field.what, ": ",
                  values(field, {name}, specs), ". Every rank must give the same ", field.what,
                  ".");
  };
  const bool is_one_tensor = std::all_of(specs.begin(), specs.end(), [&](const auto& said) {
    return said.second->parts.size() == 1 && bare_name_text(*said.second, {name}) == name;
  });
  for (const Field& field : entry_fields) {
    if (differs(field, {name}, specs)) return text_of(field);
    // Different calls may use one kind of collective, also with other dtypes: an allreduce and a
    // barrier. So the call is named before the dtype.
    const bool tells_calls_apart = field.text == kind_text && is_one_tensor;
    if (tells_calls_apart && differs(call_field, {name}, specs)) return text_of(call_field);
  }
  for (size_t part = 0; part < specs.front().second->parts.size(); ++part) {
    const Where at{name, part};
    const bool same_bare_names = !differs({"", bare_name_text}, at, specs);
    for (const Field& field : part_fields) {
      if (!differs(field, at, specs) || (same_bare_names && field.text == name_text)) continue;
      // A barrier has no tensors: its parts say what the ranks have come for.
      if (specs.front().second->kind == CollectiveKind::Barrier) {
        return concat("the ranks disagree in \"", name, "\": ", values({"", name_text}, at, specs),
                      ".");
      }
      const std::string part_name = bare_name_text(*specs.front().second, at);
      const std::string where = part_name == name ? "" : concat(" (in \"", name, "\")");
      return concat("tensor \"", part_name, "\"", where, ": the ranks disagree about the ",
                    field.what, ": ", values(field, at, specs), ". Every rank must give the same ",
                    field.what, ".");
    }
  }
  if (differs(splits_field, {name}, specs)) return text_of(splits_field);
  return concat("tensor \"", name, "\": the ranks disagree");
}

}  // namespace horon::core
