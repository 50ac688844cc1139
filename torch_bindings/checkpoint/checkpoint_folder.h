// The checkpoints of one folder: step-000000000100.pt and alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

// Takes out files that a job has not finished. For who writes to the folder: another one may be
// writing where this one only reads.
void remove_unfinished(const std::string& folder);

// The newest first; those without a readable label before all others. Throws
// Error(OperationFailed) if the folder can't be listed; one that is not there is empty.
std::vector<FoundCheckpoint> list_checkpoints(const std::string& folder);

// Those with a metric that is a number, the best first; of equal ones the newest. In front of them
// those whose label can't be read, which may have been the best.
std::vector<FoundCheckpoint> best_first(std::vector<FoundCheckpoint> found, bool lowest);

// Writes a checkpoint, the newest one by the number of its label, and takes out those that the
// options don't keep. What has no readable label stays.
void add_to_folder(const std::string& folder, CheckpointLabel label, const c10::IValue& content,
                   const CheckpointOptions& options);

}  // namespace horon::torch_detail
