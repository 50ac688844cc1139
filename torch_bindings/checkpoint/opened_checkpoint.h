// A checkpoint that has been read and found whole.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "horon/torch_bindings/checkpoint/checkpoint_folder.h"
#include "horon/torch_bindings/checkpoint/checkpoint_parts.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"

namespace horon::torch_detail {

// What a file holds beside the parts that the program names.
inline constexpr const char* kAbout = "horon";
inline constexpr const char* kValues = "values";
inline constexpr const char* kRanks = "ranks";
// Of each rank.
inline constexpr const char* kRandom = "random";
inline constexpr const char* kBuffers = "buffers";  // of a model, where they differ from rank 0's

struct OpenedCheckpoint {
  std::string path;
  CheckpointLabel label;
  c10::IValue content;
};

// Opens the first of these that can be read; what is wrong with those before it goes to the log. If
// none can be read, throws Error(OperationFailed) that says what was sought ("checkpoint"), names
// all and ends with `advice`. Returns nothing if there are no candidates. Adds to `damaged` those
// that can't be read, and takes from it the one that can.
std::optional<OpenedCheckpoint> open_first(const std::vector<FoundCheckpoint>& candidates,
                                           std::string_view sought, std::string_view advice,
                                           DamagedCheckpoints& damaged);

// The content of a file of so many ranks, without kRanks. On the writer.
c10::impl::GenericDict content_of(const NamedParts& parts,
                                  const std::map<std::string, c10::IValue>& values, int ranks);

// What every rank must know of it: path, step, metric, the program's own values, and the number of
// ranks that have saved it. A dictionary, as bytes; an empty one if nothing was opened.
std::string header_of(const std::optional<OpenedCheckpoint>& opened);
LoadedCheckpoint loaded_from(const c10::IValue& header);  // not an empty one

}  // namespace horon::torch_detail
