// One checkpoint in one file: a zip archive as torch.save() of Python writes it, followed by this
// label (in the comment of the archive, so that every reader of zip files skips it)
//
//     horon checkpoint 1 number=... step=... metric=... sha256=<64 digits>
//
// The hash is that of all bytes before its digits: `head -c -64 FILE | sha256sum` prints the digits
// that `tail -c 64 FILE` shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/ivalue.h>

namespace horon::torch_detail {

struct CheckpointLabel {
  uint64_t number = 0;  // counts the checkpoints of a folder, in the order in which they were made
  int64_t step = 0;
  std::optional<double> metric;
};

// "none", or the shortest text that reads back as the same number.
std::string metric_text(const std::optional<double>& metric);

// Writes `content` (dictionaries of texts and lists of numbers, texts and dense CPU tensors) under
// a temporary name, brings it to the disk and gives it its name: after a crash there is the whole
// file or none. Throws Error(OperationFailed) that names the file.
void write_checkpoint_file(const std::string& path, const CheckpointLabel& label,
                           const c10::IValue& content);

// Removes the unfinished file of a write_checkpoint_file() that was killed, but not one that any
// process is writing now, as far as the file system has locks.
void remove_if_left(const std::string& unfinished);

// Reads the end of the file alone. Throws Error(OperationFailed) that names the file: can't be
// read, is cut off or no checkpoint.
CheckpointLabel read_checkpoint_label(const std::string& path);

// Reads the whole file and checks the hash. Throws as above, and if the file is damaged.
c10::IValue read_checkpoint_file(const std::string& path);

// A value as bytes, to be sent; and back.
std::string to_bytes(const c10::IValue& content);
c10::IValue from_bytes(const std::string& bytes);

}  // namespace horon::torch_detail
