#include "horon/torch_bindings/checkpoint/opened_checkpoint.h"

#include <algorithm>

#include "horon/core/base/error.h"
#include "horon/core/base/log.h"
#include "horon/core/base/text.h"

namespace horon::torch_detail {
namespace {

using core::concat;

// Whether it has the program's values, and what at least one rank had of its own.
bool is_ours(const c10::IValue& value) {
  if (!value.isGenericDict()) return false;
  const c10::impl::GenericDict content = value.toGenericDict();
  if (!content.contains(kValues) || !content.at(kValues).isGenericDict()) return false;
  if (!content.contains(kRanks) || !content.at(kRanks).isList()) return false;
  const c10::impl::GenericList ranks = content.at(kRanks).toList();
  return !ranks.empty() && std::all_of(ranks.begin(), ranks.end(), [](const c10::IValue& of_rank) {
    return of_rank.isGenericDict();
  });
}

OpenedCheckpoint open_checkpoint(const std::string& path) {
  OpenedCheckpoint opened{path, read_checkpoint_label(path), read_checkpoint_file(path)};
  if (!is_ours(opened.content)) {
    throw Error(ErrorCode::OperationFailed,
                concat("checkpoint ", path, ": was not written by Horon"));
  }
  return opened;
}

}  // namespace

std::optional<OpenedCheckpoint> open_first(const std::vector<FoundCheckpoint>& candidates,
                                           std::string_view sought, std::string_view advice,
                                           DamagedCheckpoints& damaged) {
  std::string problems;
  for (const FoundCheckpoint& candidate : candidates) {
    std::string problem = candidate.problem;
    try {
      if (problem.empty()) {
        OpenedCheckpoint opened = open_checkpoint(candidate.path);
        damaged.erase(candidate.path);
        if (!problems.empty()) {
          core::log(core::LogLevel::Warn, concat(problems, "; loading ", opened.path, " instead"));
        }
        return opened;
      }
    } catch (const Error& error) {
      problem = error.what();
    }
    damaged.insert(candidate.path);
    problems += concat(problems.empty() ? "" : "; ", problem);
  }
  if (!problems.empty()) {
    throw Error(ErrorCode::OperationFailed,
                concat("no ", sought, " can be read: ", problems, advice));
  }
  return std::nullopt;
}

c10::impl::GenericDict content_of(const NamedParts& parts,
                                  const std::map<std::string, c10::IValue>& values, int ranks) {
  c10::impl::GenericDict content = text_dictionary();
  c10::impl::GenericDict about = text_dictionary();
  about.insert("format", int64_t{1});
  about.insert("ranks", int64_t{ranks});
  content.insert(kAbout, about);
  c10::impl::GenericDict own = text_dictionary();
  for (const auto& [name, value] : values) own.insert(name, plain_copy(name, value));
  content.insert(kValues, own);
  for (const auto& [name, part] : parts) content.insert(name, part->take());
  return content;
}

std::string header_of(const std::optional<OpenedCheckpoint>& opened) {
  c10::impl::GenericDict header = text_dictionary();
  if (opened) {
    const std::optional<double>& metric = opened->label.metric;
    header.insert("path", opened->path);
    header.insert("step", opened->label.step);
    header.insert("metric", metric ? c10::IValue(*metric) : c10::IValue());
    header.insert(kValues, value_in(opened->content, kValues));
    header.insert(kRanks, static_cast<int64_t>(list_in(opened->content, kRanks).size()));
  }
  return to_bytes(header);
}

LoadedCheckpoint loaded_from(const c10::IValue& header) {
  LoadedCheckpoint loaded;
  loaded.path = value_in(header, "path").toStringRef();
  loaded.step = value_in(header, "step").toInt();
  loaded.ranks = static_cast<int>(value_in(header, kRanks).toInt());
  const c10::IValue metric = value_in(header, "metric");
  if (metric.isDouble()) loaded.metric = metric.toDouble();
  for (const auto& entry : value_in(header, kValues).toGenericDict()) {
    loaded.values.emplace(entry.key().toStringRef(), entry.value());
  }
  return loaded;
}

}  // namespace horon::torch_detail
