// The file that carries what autotuning has found from one run to the next. One line for each
// reducer: its name, the facts under which the result holds, and the settings.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "horon/core/tuning/tuning_settings.h"

namespace horon::core {

class WarmStartFile {
 public:
  struct Entry {
    std::string facts;  // the model, the ranks and their hosts, in words
    TuningSettings settings;
  };
  using Entries = std::map<std::string, Entry>;  // by the name of the reducer

  explicit WarmStartFile(std::string path);

  // Empty if there is no file. Throws Error(Config) that names file, line and reason if it can't be
  // read or is not such a file.
  Entries load() const;
  // What save() has kept for that reducer. Throws as load().
  std::optional<Entry> find(const std::string& name) const;
  // Adds or replaces one entry; the others stay. Another process sees the old file or the new one.
  // A file that load() refuses is left as it is. Throws as load().
  void save(const std::string& name, const Entry& entry) const;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// "bucket_bytes=4194304 first_bucket_bytes=262144", in every locale.
std::string settings_text(const TuningSettings& settings);

}  // namespace horon::core
