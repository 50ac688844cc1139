#include "horon/torch_bindings/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <set>
#include <system_error>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::torch_detail {
namespace {

namespace fs = std::filesystem;

bool is_finished(const std::string& name) {
  return name.starts_with("step-") && name.ends_with(".pt");
}

// A number stands behind it.
bool is_unfinished(const std::string& name) {
  return name.starts_with("step-") && name.find(".pt.tmp") != std::string::npos;
}

// Of regular files.
std::vector<fs::path> files_in(const std::string& folder, bool (*wanted)(const std::string& name)) {
  std::vector<fs::path> paths;
  std::error_code error;
  // A folder that can't be looked at is not taken for a missing one: the job would begin anew.
  if (!fs::exists(folder, error) && !error) return paths;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    std::error_code gone;
    if (wanted(entry.path().filename().string()) && entry.is_regular_file(gone)) {
      paths.push_back(entry.path());
    }
  }
  if (error) {
    throw Error(ErrorCode::OperationFailed,
                core::concat("checkpoints: ", folder, " can't be listed: ", error.message()));
  }
  return paths;
}

}  // namespace

std::string checkpoint_path(const std::string& folder, int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%012lld.pt", static_cast<long long>(step));  // NOLINT
  return (fs::path(folder) / name).string();
}

void prepare_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || !fs::is_directory(folder, error)) {
    throw Error(ErrorCode::OperationFailed,
                core::concat("checkpoints: the folder ", folder, " can't be created",
                             error ? ": " + error.message() : std::string()));
  }
}

void remove_unfinished(const std::string& folder) {
  for (const fs::path& path : files_in(folder, is_unfinished)) remove_if_left(path.string());
}

std::vector<FoundCheckpoint> list_checkpoints(const std::string& folder) {
  std::vector<FoundCheckpoint> found;
  for (const fs::path& path : files_in(folder, is_finished)) {
    FoundCheckpoint one{.path = path.string()};
    try {
      one.label = read_checkpoint_label(one.path);
    } catch (const Error& error) {
      one.problem = error.what();
    }
    found.push_back(std::move(one));
  }
  std::sort(found.begin(), found.end(), [](const FoundCheckpoint& a, const FoundCheckpoint& b) {
    if (a.problem.empty() != b.problem.empty()) return b.problem.empty();
    if (a.label.number != b.label.number) return a.label.number > b.label.number;
    return a.path > b.path;
  });
  return found;
}

std::vector<FoundCheckpoint> best_first(std::vector<FoundCheckpoint> found, bool lowest) {
  std::erase_if(found, [](const FoundCheckpoint& one) {
    return one.problem.empty() && (!one.label.metric || std::isnan(*one.label.metric));
  });
  const auto readable = std::stable_partition(
      found.begin(), found.end(), [](const FoundCheckpoint& one) { return !one.problem.empty(); });
  std::stable_sort(
      readable, found.end(), [lowest](const FoundCheckpoint& a, const FoundCheckpoint& b) {
        return lowest ? *a.label.metric < *b.label.metric : *a.label.metric > *b.label.metric;
      });
  return found;
}

namespace {

// Removes the checkpoints that are not kept. `last` 0: all stay.
void prune_folder(const std::string& folder, size_t last, size_t best, bool lowest,
                  const DamagedCheckpoints& damaged) {
  if (last == 0) return;
  std::vector<FoundCheckpoint> found = list_checkpoints(folder);
  std::erase_if(found, [&](const FoundCheckpoint& one) {
    return !one.problem.empty() || damaged.contains(one.path);
  });
  std::set<std::string> kept;
  for (size_t i = 0; i < std::min(last, found.size()); ++i) kept.insert(found[i].path);
  const std::vector<FoundCheckpoint> ordered = best_first(found, lowest);
  for (size_t i = 0; i < std::min(best, ordered.size()); ++i) kept.insert(ordered[i].path);
  for (const FoundCheckpoint& one : found) {
    std::error_code ignored;
    if (!kept.contains(one.path)) fs::remove(one.path, ignored);
  }
}

}  // namespace

void add_to_folder(const std::string& folder, CheckpointLabel label, const c10::IValue& content,
                   const CheckpointOptions& options, DamagedCheckpoints& damaged) {
  for (const FoundCheckpoint& one : list_checkpoints(folder)) {
    label.number = std::max(label.number, one.label.number + 1);
  }
  const std::string path = checkpoint_path(folder, label.step);
  write_checkpoint_file(path, label, content);
  damaged.erase(path);
  prune_folder(folder, options.keep_last, options.keep_best,
               options.best == CheckpointOptions::Best::Lowest, damaged);
}

}  // namespace horon::torch_detail
