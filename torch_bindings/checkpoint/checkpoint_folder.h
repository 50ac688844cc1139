// The checkpoints of one folder: step-000000000100.pt and alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "horon/torch_bindings/checkpoint/checkpoint_file.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"

namespace horon::torch_detail {

struct FoundCheckpoint {
  std::string path;
  CheckpointLabel label = {};
  std::string problem = {};  // why its label can't be read; empty: it can
};

std::string checkpoint_path(const std::string& folder, int64_t step);

// Makes the folder if it is not there. Throws Error(OperationFailed).
void prepare_folder(const std::string& folder);

// Removes unfinished files, but none that another job is writing now, as far as the file system has
// locks. So only for a job that writes to the folder itself.
void remove_unfinished(const std::string& folder);

// The newest first; those without a readable label before all others. Throws
// Error(OperationFailed) if the folder can't be listed; one that is not there is empty.
std::vector<FoundCheckpoint> list_checkpoints(const std::string& folder);

// First the checkpoints whose label can't be read, which may have been the best. Then those with a
// metric that is a number, the best first; of equal ones the newest.
std::vector<FoundCheckpoint> best_first(std::vector<FoundCheckpoint> found, bool lowest);

// Paths of those that could not be read, or not whole.
using DamagedCheckpoints = std::set<std::string>;

// Writes a checkpoint, the newest one by the number of its label, and removes those that the
// options don't keep. Files without a readable label stay, and `damaged` ones, which the written
// one is no more; neither take the place of one that is kept.
void add_to_folder(const std::string& folder, CheckpointLabel label, const c10::IValue& content,
                   const CheckpointOptions& options, DamagedCheckpoints& damaged);

}  // namespace horon::torch_detail
