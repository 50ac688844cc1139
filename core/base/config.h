// Every knob of Horon, in one struct: parsed once, printable with the origin of each value.
//
// A variable that starts with HORON_ and is no knob is an error (a typing error must not be
// ignored), as is a value out of range. Precedence: InitOptions::set, then the environment, then
// the default. Numbers of bytes take K, M, G (1000s) and KiB, MiB, GiB (1024s). Add a knob by a
// field here and a row in config.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace horon::core {

struct Config {
  int64_t fusion_bytes_max = 64 << 20;     // HORON_FUSION_BYTES
  int64_t bucket_bytes = 4 << 20;          // HORON_BUCKET_BYTES
  int64_t first_bucket_bytes = 256 << 10;  // HORON_FIRST_BUCKET_BYTES
  double stall_warn_s = 10;                // HORON_STALL_WARN_S, 0: never
  double stall_abort_s = 0;                // HORON_STALL_ABORT_S, 0: never
  double dead_after_s = 10;                // HORON_DEAD_AFTER_S, 0: never
  double shutdown_timeout_s = 30;          // HORON_SHUTDOWN_TIMEOUT_S
  int64_t spin_us = -1;                    // HORON_SPIN_US, -1: chosen from cores and ranks
  int64_t threads = 0;                     // HORON_THREADS, 0: chosen from cores and ranks
  std::string allreduce = "auto";          // HORON_ALLREDUCE: auto, shm, mpi
  bool shared_memory = true;               // HORON_SHARED_MEMORY
  bool check_finite = false;               // HORON_CHECK_FINITE
  std::string log_level = "info";          // HORON_LOG: error, warn, info, debug
  std::string timeline;                    // HORON_TIMELINE: file, empty: none

  struct Value {
    std::string name;   // "HORON_FUSION_BYTES"
    std::string value;  // as text
    std::string unit;   // "bytes", "seconds", ""
    std::string meaning;
    std::string origin;  // "default", "environment", "init()"
  };

  // `lookup` is the environment (or a test's map); `variables` lists the names that are set in it,
  // to find typing errors; `overrides` come from InitOptions. Throws Error(Config) naming the knob,
  // its value and its range.
  using Lookup = std::function<std::optional<std::string>(const std::string&)>;
  static Config parse(const Lookup& lookup, std::span<const std::string> variables,
                      const std::map<std::string, std::string>& overrides);
  static Config from_environment(const std::map<std::string, std::string>& overrides = {});

  // Every knob with value and origin, in order.
  std::vector<Value> values() const;
  // Equal on two ranks iff all knobs that must agree are equal (the ones that are a rank's own
  // business are left out).
  uint64_t digest() const;
  // The knobs that must agree, as "NAME=value" lines: to name the difference.
  std::vector<std::string> agreed_values() const;

 private:
  std::map<std::string, std::string> origins_;
};

// Is a variable of this name set? For variables of others (OMP_NUM_THREADS) that say what the user
// has chosen; Horon's own are knobs.
bool environment_has(const std::string& name);

}  // namespace horon::core
