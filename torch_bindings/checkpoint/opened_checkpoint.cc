#include "horon/torch_bindings/checkpoint/opened_checkpoint.h"

#include "horon/core/base/error.h"
#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/checkpoint/checkpoint_parts.h"

namespace horon::torch_detail {
namespace {

using core::concat;

OpenedCheckpoint open_checkpoint(const std::string& path) {
  OpenedCheckpoint opened{path, read_checkpoint_label(path), read_checkpoint_file(path)};
  const auto has = [&](const char* name, bool (c10::IValue::*is_right)() const) {
    if (!opened.content.isGenericDict()) return false;
    const auto content = opened.content.toGenericDict();
    return content.contains(name) && (content.at(name).*is_right)();
  };
  if (!has(kValues, &c10::IValue::isGenericDict) || !has(kRanks, &c10::IValue::isList)) {
    throw Error(ErrorCode::OperationFailed, concat("checkpoint ", path, ": is not one of Horon's"));
  }
  return opened;
}

}  // namespace

std::optional<OpenedCheckpoint> open_first(const std::vector<FoundCheckpoint>& candidates) {
  std::string problems;
  for (const FoundCheckpoint& candidate : candidates) {
    std::string problem = candidate.problem;
    try {
      if (problem.empty()) {
        OpenedCheckpoint opened = open_checkpoint(candidate.path);
        if (!problems.empty()) {
          core::log(core::LogLevel::Warn, concat(problems, "; going on from ", opened.path));
        }
        return opened;
      }
    } catch (const Error& error) {
      problem = error.what();
    }
    problems += concat(problems.empty() ? "" : "; ", problem);
  }
  if (!problems.empty()) {
    throw Error(ErrorCode::OperationFailed,
                concat("no checkpoint can be read: ", problems, ". Move them away to begin anew"));
  }
  return std::nullopt;
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

}  // namespace horon::torch_detail
