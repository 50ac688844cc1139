// The file that keeps what was measured, so that the next job on the same hosts need not measure
// again. One line for each job: its hosts and ranks, the day, and the constants.
//
// The file only saves time. So one that can't be read or written, or that holds something else,
// counts as none, and nothing here throws.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "horon/ops/choice/machine_constants.h"

namespace horon::ops {

class ConstantsFile {
 public:
  // Networks and machines change: older constants are measured again.
  static constexpr int64_t kDaysMax = 7;
  // At most so many lines; the oldest ones make room.
  static constexpr size_t kLinesMax = 64;

  // Empty: there is no file.
  explicit ConstantsFile(std::string path);

  // `job`: its hosts and ranks, in words. `today`: days since 1970.
  std::optional<MachineConstants> load(const std::string& job, int64_t today) const;
  // Adds or replaces one line; the others stay. Another process sees the old file or the new one.
  // Makes the folder if there is none. False, with the reason in the log (debug), if it can't.
  bool save(const std::string& job, int64_t today, const MachineConstants& constants) const;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// In the user's cache, with the name of this host: "~/.cache/horon/constants.node7". Empty if the
// user has no home.
std::string default_constants_path(const std::string& host_name);

}  // namespace horon::ops
