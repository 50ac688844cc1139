// Every knob of Horon, in one struct: parsed once, printed with the origin of each value.
//
// A variable that starts with HORON_ and looks like a misspelt knob is an error. A value out of
// range is an error too. InitOptions::set wins over the environment, which wins over the default.
// Sizes take K, M, G (powers of 1000) and KiB, MiB, GiB (powers of 1024). To add a knob, add a
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
  int64_t eager_bytes = 4 << 10;           // HORON_EAGER_BYTES
  int64_t bucket_bytes = 4 << 20;          // HORON_BUCKET_BYTES
  int64_t first_bucket_bytes = 256 << 10;  // HORON_FIRST_BUCKET_BYTES
  int64_t piece_bytes = 0;                 // HORON_PIECE_BYTES, 0: the op chooses
  bool autotune = false;                   // HORON_AUTOTUNE
  int64_t autotune_samples = 20;           // HORON_AUTOTUNE_SAMPLES
  int64_t autotune_steps = 10;             // HORON_AUTOTUNE_STEPS
  std::string autotune_log;                // HORON_AUTOTUNE_LOG: file, empty: none
  std::string autotune_warm_start;         // HORON_AUTOTUNE_WARM_START: file, empty: none
  double stall_warn_s = 10;                // HORON_STALL_WARN_S, 0: never
  double stall_abort_s = 0;                // HORON_STALL_ABORT_S, 0: never
  double dead_after_s = 10;                // HORON_DEAD_AFTER_S, 0: never
  double shutdown_timeout_s = 30;          // HORON_SHUTDOWN_TIMEOUT_S
  int64_t spin_us = 0;                     // HORON_SPIN_US
  std::string step_in_submit = "auto";     // HORON_STEP_IN_SUBMIT: auto, on, off
  int64_t threads = 0;                     // HORON_THREADS, 0: chosen from cores and ranks
  std::string allreduce = "auto";          // HORON_ALLREDUCE: auto, shm, hier, mpi
  std::string gpu_collectives = "auto";    // HORON_GPU_COLLECTIVES
  std::string nccl_register = "auto";      // HORON_NCCL_REGISTER: auto, off
  std::string wire_dtype = "float32";      // HORON_WIRE_DTYPE: float32, bfloat16, float16
  std::string measure = "auto";            // HORON_MEASURE: auto, again, off
  std::string measure_file;                // HORON_MEASURE_FILE: empty: in the user's cache
  bool shared_memory = true;               // HORON_SHARED_MEMORY
  std::string process_copies = "auto";     // HORON_CMA
  bool freeze = true;                      // HORON_FREEZE
  bool keep_heap = true;                   // HORON_KEEP_HEAP
  std::string host_id;                     // HORON_HOST_ID, empty: as MPI says
  bool check_finite = false;               // HORON_CHECK_FINITE
  bool check_replicas = true;              // HORON_CHECK_REPLICAS
  std::string log_level = "info";          // HORON_LOG: error, warn, info, debug
  std::string timeline;                    // HORON_TIMELINE: file, empty: none

  struct Value {
    std::string name;   // "HORON_FUSION_BYTES"
    std::string value;  // as text
    std::string unit;   // "bytes", "seconds", ""
    std::string meaning;
    std::string origin;  // "default", "environment", "init()"
  };

  // `lookup` is the environment, or a test's map. `variables` lists the names that are set in it,
  // to find misspelt knobs. Other names HORON_X may belong to somebody else: Kubernetes makes such
  // variables for a service named "horon". `overrides` come from InitOptions. Throws Error(Config),
  // which names the knob, its value and its range.
  using Lookup = std::function<std::optional<std::string>(const std::string&)>;
  static Config parse(const Lookup& lookup, std::span<const std::string> variables,
                      const std::map<std::string, std::string>& overrides);
  static Config from_environment(const std::map<std::string, std::string>& overrides = {});

  // Every knob with its value and its origin, in the order of the fields.
  std::vector<Value> values() const;
  // The knobs that must agree on all ranks, as "NAME=value" lines, so that an error can name the
  // difference. Knobs that each rank may set as it likes are left out.
  std::vector<std::string> agreed_values() const;
  // HORON_X variables of this process that neither are knobs nor resemble one.
  const std::vector<std::string>& unknown() const { return unknown_; }

 private:
  std::map<std::string, std::string> origins_;
  std::vector<std::string> unknown_;
};

// Whether an environment variable of this name is set. For variables that are not Horon's, such as
// OMP_NUM_THREADS.
bool environment_has(const std::string& name);
// The value of that variable; empty if it is not set.
std::string environment_value(const std::string& name);

}  // namespace horon::core
