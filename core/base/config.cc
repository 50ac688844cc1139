#include "horon/core/base/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <unistd.h>
#include <variant>

#include "horon/core/base/error.h"
#include "horon/core/base/nearest_name.h"
#include "horon/core/base/overloaded.h"
#include "horon/core/base/parse_number.h"
#include "horon/core/base/text.h"

namespace horon::core {
namespace {

using Field =
    std::variant<int64_t Config::*, double Config::*, bool Config::*, std::string Config::*>;

enum class Scope : unsigned char { SameOnAllRanks, OwnOfEachRank };

struct Range {
  double min = 0;
  double max = 0;
};

struct Knob {
  std::string_view name;
  Field field;
  std::string_view unit;
  Range range;               // numbers only
  std::string_view choices;  // text only: "auto, shm, mpi"; empty: any text
  Scope scope = Scope::OwnOfEachRank;
  std::string_view meaning;
};

constexpr Scope kSame = Scope::SameOnAllRanks;
constexpr Scope kOwn = Scope::OwnOfEachRank;
constexpr double kBytesMax = 1024.0 * 1024 * 1024 * 1024;
constexpr double kDay_s = 24 * 3600;

// One function for each kind of knob makes its row.
constexpr Knob bytes(std::string_view name, int64_t Config::*field, double min, Scope scope,
                     std::string_view meaning) {
  return {name, field, "bytes", {min, kBytesMax}, "", scope, meaning};
}
constexpr Knob seconds(std::string_view name, double Config::*field, Scope scope,
                       std::string_view meaning) {
  return {name, field, "seconds", {0, kDay_s}, "", scope, meaning};
}
constexpr Knob integer(std::string_view name, int64_t Config::*field, std::string_view unit,
                       Range range, Scope scope, std::string_view meaning) {
  return {name, field, unit, range, "", scope, meaning};
}
constexpr Knob yes_or_no(std::string_view name, bool Config::*field, Scope scope,
                         std::string_view meaning) {
  return {name, field, "", {}, "", scope, meaning};
}
constexpr Knob text(std::string_view name, std::string Config::*field, std::string_view choices,
                    Scope scope, std::string_view meaning) {
  return {name, field, "", {}, choices, scope, meaning};
}

constexpr std::array kKnobs = {
    bytes("HORON_FUSION_BYTES", &Config::fusion_bytes_max, 0, kSame,
          "small tensors are fused up to this size; 0: each is reduced alone"),
    integer("HORON_EAGER_BYTES", &Config::eager_bytes, "bytes", {0, 4096}, kSame,
            "between hosts, votes for blocking allreduces up to this size, and for barriers, carry "
            "the elements; 0: never"),
    bytes("HORON_BUCKET_BYTES", &Config::bucket_bytes, 1, kSame, "size of a gradient bucket"),
    bytes("HORON_FIRST_BUCKET_BYTES", &Config::first_bucket_bytes, 1, kSame,
          "size of the bucket that backward fills first"),
    bytes("HORON_PIECE_BYTES", &Config::piece_bytes, 0, kSame,
          "size of the pieces in which a gradient bucket is reduced; 0: chosen by its length"),
    yes_or_no(
        "HORON_AUTOTUNE", &Config::autotune, kSame,
        "search for faster bucket and piece sizes during the first hundreds of training steps"),
    integer("HORON_AUTOTUNE_SAMPLES", &Config::autotune_samples, "", {2, 1000}, kOwn,
            "the most bucket and piece sizes that autotuning tries"),
    integer("HORON_AUTOTUNE_STEPS", &Config::autotune_steps, "", {1, 10000}, kOwn,
            "the fewest training steps that autotuning times for each"),
    text("HORON_AUTOTUNE_LOG", &Config::autotune_log, "", kOwn,
         "CSV file for what autotuning measures; empty: none"),
    text("HORON_AUTOTUNE_WARM_START", &Config::autotune_warm_start, "", kOwn,
         "file in which autotuning keeps its results, and from which it starts; empty: none"),
    seconds("HORON_STALL_WARN_S", &Config::stall_warn_s, kOwn,
            "warn when a tensor has waited for ranks this long; 0: never, and errors do not name "
            "those ranks"),
    seconds("HORON_STALL_ABORT_S", &Config::stall_abort_s, kSame,
            "end the job when a tensor has waited for ranks this long; 0: never"),
    seconds("HORON_DEAD_AFTER_S", &Config::dead_after_s, kSame,
            "a rank that is silent this long counts as dead; 0: never"),
    seconds("HORON_SHUTDOWN_TIMEOUT_S", &Config::shutdown_timeout_s, kOwn,
            "how long shutdown() waits for this rank's submissions, and after an error for ranks "
            "that still save; 0: not at all"),
    integer("HORON_SPIN_US", &Config::spin_us, "microseconds", {0, 1e6}, kOwn,
            "how long a waiting thread spins after the last progress before it yields and sleeps"),
    text("HORON_STEP_IN_SUBMIT", &Config::step_in_submit, "auto, on, off", kOwn,
         "asynchronous calls advance communication themselves; auto: if no core is to spare"),
    integer("HORON_THREADS", &Config::threads, "", {0, 4096}, kOwn,
            "OpenMP threads of this rank; 0: from the cores and ranks of its host"),
    text("HORON_ALLREDUCE", &Config::allreduce, "auto, shm, hier, mpi", kSame,
         "which allreduce runs on CPUs; auto: the fastest for the ranks and the length"),
    text("HORON_GPU_COLLECTIVES", &Config::gpu_collectives, "auto, nccl, host, hierarchical", kSame,
         "what runs the collectives of GPU tensors; auto: NCCL, and the host for what NCCL lacks; "
         "host: always the host, on copies, also together with ranks that have no GPU; "
         "hierarchical: as auto, but allreduce by NCCL within hosts and by MPI between them"),
    text("HORON_NCCL_REGISTER", &Config::nccl_register, "auto, off", kSame,
         "register fusion buffers with NCCL, for faster kernels; auto: from NCCL 2.27.3 on, where "
         "it can"),
    text("HORON_WIRE_DTYPE", &Config::wire_dtype, "float32, bfloat16, float16", kSame,
         "type in which long float32 reductions travel between hosts"),
    text("HORON_MEASURE", &Config::measure, "auto, again, off", kSame,
         "init() measures the constants by which algorithms are chosen; auto: once a week"),
    text("HORON_MEASURE_FILE", &Config::measure_file, "", kOwn,
         "file of rank 0 that keeps these constants; empty: in the user's cache"),
    yes_or_no("HORON_SHARED_MEMORY", &Config::shared_memory, kSame,
              "ranks of one host use shared memory"),
    text("HORON_CMA", &Config::process_copies, "auto, on, off", kSame,
         "ranks of one host copy private tensors directly between their processes "
         "(process_vm_readv), where the system permits it; auto: if measured to be faster"),
    yes_or_no(
        "HORON_FREEZE", &Config::freeze, kSame,
        "repeated collectives on one host start by a counter in shared memory, without a message"),
    yes_or_no("HORON_KEEP_HEAP", &Config::keep_heap, kOwn,
              "memory that a training step frees stays in the process for the next step"),
    text("HORON_HOST_ID", &Config::host_id, "", kOwn,
         "ranks with different ids count as on different hosts; empty: as MPI finds them"),
    yes_or_no(
        "HORON_CHECK_FINITE", &Config::check_finite, kOwn,
        "refuse to reduce a tensor with a NaN or an infinity; the error names it and the rank"),
    yes_or_no("HORON_CHECK_REPLICAS", &Config::check_replicas, kSame,
              "compare a sample of the parameters across ranks at each reduction of gradients"),
    text("HORON_LOG", &Config::log_level, "error, warn, info, debug", kOwn,
         "how much to log on standard error"),
    text("HORON_TIMELINE", &Config::timeline, "", kOwn,
         "file for a trace of events (chrome://tracing); empty: none"),
};

const Knob* find_knob(std::string_view name) {
  for (const Knob& knob : kKnobs) {
    if (knob.name == name) return &knob;
  }
  return nullptr;
}

[[noreturn]] void fail(const Knob& knob, const std::string& text, const std::string& wanted) {
  throw Error(ErrorCode::Config, concat(knob.name, "='", text, "': ", wanted));
}

// Integers are printed in full: 65536, not 6.5536e+04.
std::string bound_text(const Knob& knob, double bound) {
  if (knob.unit == "bytes") return bytes_text(static_cast<uint64_t>(bound));
  if (std::holds_alternative<int64_t Config::*>(knob.field)) {
    return std::to_string(static_cast<int64_t>(bound));
  }
  return number_text(bound);
}

std::string range_text(const Knob& knob) {
  const std::string unit =
      knob.unit.empty() || knob.unit == "bytes" ? std::string() : concat(" ", knob.unit);
  return concat("give ", bound_text(knob, knob.range.min), " to ", bound_text(knob, knob.range.max),
                unit);
}

void check_range(const Knob& knob, const std::string& text, double value) {
  // In this form a NaN is refused too.
  if (value >= knob.range.min && value <= knob.range.max) return;
  fail(knob, text, range_text(knob));
}

int64_t parse_integer(const Knob& knob, const std::string& text) {
  const bool bytes = knob.unit == "bytes";
  const std::optional<double> value = bytes ? parse_bytes(text) : parse_number(text);
  if (!value && bytes) {
    fail(knob, text, "give a number of bytes, such as 1048576, 500K (1000) or 64MiB (1024)");
  }
  if (!value || (!bytes && *value != std::floor(*value))) fail(knob, text, "give a whole number");
  check_range(knob, text, *value);
  if (*value != std::floor(*value)) fail(knob, text, "give a whole number of bytes");
  return static_cast<int64_t>(*value);
}

double parse_real(const Knob& knob, const std::string& text) {
  const std::optional<double> value = parse_number(text);
  if (!value) fail(knob, text, concat("give a number of ", knob.unit));
  check_range(knob, text, *value);
  return *value;
}

bool parse_switch(const Knob& knob, const std::string& text) {
  for (const std::string_view yes : {"1", "true", "on", "yes"}) {
    if (text == yes) return true;
  }
  for (const std::string_view no : {"0", "false", "off", "no"}) {
    if (text == no) return false;
  }
  fail(knob, text, "give 1 or 0 (or true, false, on, off, yes, no)");
}

std::string parse_text(const Knob& knob, const std::string& text) {
  if (knob.choices.empty()) return text;
  std::string_view rest = knob.choices;
  while (!rest.empty()) {
    const size_t comma = rest.find(", ");
    if (rest.substr(0, comma) == text) return text;
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 2);
  }
  fail(knob, text, concat("give one of ", knob.choices));
}

void set_field(Config& config, const Knob& knob, const std::string& text) {
  std::visit(
      Overloaded{[&](int64_t Config::*field) { config.*field = parse_integer(knob, text); },
                 [&](double Config::*field) { config.*field = parse_real(knob, text); },
                 [&](bool Config::*field) { config.*field = parse_switch(knob, text); },
                 [&](std::string Config::*field) { config.*field = parse_text(knob, text); }},
      knob.field);
}

std::string field_text(const Config& config, const Knob& knob) {
  return std::visit(
      Overloaded{[&](int64_t Config::*field) { return std::to_string(config.*field); },
                 [&](double Config::*field) { return number_text(config.*field); },
                 [&](bool Config::*field) { return std::string(config.*field ? "1" : "0"); },
                 [&](std::string Config::*field) { return config.*field; }},
      knob.field);
}

constexpr std::string_view kPrefix = "HORON_";

// Without the prefix.
std::vector<std::string_view> knob_words() {
  std::vector<std::string_view> words;
  words.reserve(kKnobs.size());
  for (const Knob& knob : kKnobs) words.push_back(knob.name.substr(kPrefix.size()));
  return words;
}

std::string_view without_prefix(std::string_view name) {
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

[[noreturn]] void fail_unknown(std::string_view name) {
  throw Error(ErrorCode::Config, concat(name, " is not a knob; did you mean ", kPrefix,
                                        nearest_name(without_prefix(name), knob_words()), "?"));
}

// What find_package(), environment modules and package managers have for any package.
bool is_of_a_package(std::string_view word) {
  constexpr std::array<std::string_view, 5> kWords{"ROOT", "DIR", "HOME", "PREFIX", "VERSION"};
  return std::find(kWords.begin(), kWords.end(), word) != kWords.end();
}

}  // namespace

Config Config::parse(const Lookup& lookup, std::span<const std::string> variables,
                     const std::map<std::string, std::string>& overrides) {
  Config config;
  for (const std::string& name : variables) {
    if (!name.starts_with(kPrefix) || find_knob(name) != nullptr) continue;
    const std::string_view word = without_prefix(name);
    if (is_of_a_package(word)) continue;
    if (may_mean_one_of(word, knob_words())) fail_unknown(name);
    config.unknown_.push_back(name);
  }
  for (const auto& [name, value] : overrides) {
    if (find_knob(name) == nullptr) fail_unknown(name);
  }
  for (const Knob& knob : kKnobs) {
    const std::string name(knob.name);
    if (const auto found = overrides.find(name); found != overrides.end()) {
      set_field(config, knob, found->second);
      config.origins_[name] = "init()";
    } else if (const std::optional<std::string> text = lookup(name)) {
      set_field(config, knob, *text);
      config.origins_[name] = "environment";
    }
  }
  return config;
}

Config Config::from_environment(const std::map<std::string, std::string>& overrides) {
  std::vector<std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    variables.emplace_back(text.substr(0, text.find('=')));
  }
  const Lookup lookup = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  return parse(lookup, variables, overrides);
}

std::vector<Config::Value> Config::values() const {
  std::vector<Value> all;
  for (const Knob& knob : kKnobs) {
    const std::string name(knob.name);
    const auto origin = origins_.find(name);
    all.push_back({name, field_text(*this, knob), std::string(knob.unit), std::string(knob.meaning),
                   origin == origins_.end() ? std::string("default") : origin->second});
  }
  return all;
}

std::vector<std::string> Config::agreed_values() const {
  std::vector<std::string> lines;
  for (const Knob& knob : kKnobs) {
    if (knob.scope == Scope::SameOnAllRanks) {
      lines.push_back(concat(knob.name, "=", field_text(*this, knob)));
    }
  }
  return lines;
}

bool environment_has(const std::string& name) { return std::getenv(name.c_str()) != nullptr; }

std::string environment_value(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

}  // namespace horon::core
