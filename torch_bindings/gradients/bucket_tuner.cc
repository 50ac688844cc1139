#include "horon/torch_bindings/gradients/bucket_tuner.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <set>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/log.h"
#include "horon/core/base/parse_number.h"
#include "horon/core/base/text.h"

namespace horon::torch_detail {
namespace {

using core::concat;
using TuningStage = core::Autotuner::Stage;

// Logarithms of bytes to the base 2.
constexpr double kOthersMin = 16, kOthersMax = 26;
// The first bucket may hold everything: then nothing travels before backward has ended, which is
// best where messages are work of the cores that train.
constexpr double kFirstMin = 14, kFirstMax = 26;
constexpr double kStride = 0.5;
// Shorter pieces cost more to count than they could gain.
constexpr double kPieceMin = 15;
constexpr double kPieceStride = 1;
// How many steps a wish rests if not all ranks have heard it: ranks that have joined come back all
// together, and not soon.
constexpr int64_t kQuietSteps = 16;

std::atomic<const BucketTuner*> tuned_now{nullptr};

double real_seconds() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

std::atomic<TuningClock> tuning_clock{real_seconds};

double now_s() { return tuning_clock.load()(); }

core::TuningSettings in_settings(const BucketBytes& bytes) {
  return {{"bucket_bytes", bytes.others},
          {"first_bucket_bytes", bytes.first},
          {"piece_bytes", bytes.piece}};
}

// From a file, which may be older than the setting of pieces: then `piece` holds.
std::optional<BucketBytes> bytes_of(const core::TuningSettings& settings, int64_t piece) {
  BucketBytes bytes;
  bytes.piece = piece;
  for (const auto& [name, value] : settings) {
    if (name == "bucket_bytes") bytes.others = value;
    if (name == "first_bucket_bytes") bytes.first = value;
    if (name == "piece_bytes") bytes.piece = value;
  }
  if (bytes.others < 1 || bytes.first < 1) return std::nullopt;
  return bytes;
}

double octaves(int64_t size) { return std::log2(static_cast<double>(size)); }

// Whole KiB, up to the first size that holds everything.
std::vector<int64_t> sizes(double least, double most, int64_t everything, double stride = kStride) {
  std::vector<int64_t> result;
  for (double octave = least; octave <= most; octave += stride) {
    result.push_back(std::llround(std::exp2(octave - 10)) * 1024);
    if (result.back() >= everything) break;
  }
  return result;
}

std::string in_words(const BucketBytes& bytes) {
  const auto size = [](int64_t value) { return core::bytes_text(static_cast<uint64_t>(value)); };
  return concat("buckets of ", size(bytes.others), ", the first of ", size(bytes.first),
                bytes.piece == 0 ? "" : concat(", in pieces of ", size(bytes.piece)));
}

// The knobs, for a run without autotuning.
std::string by_hand(const BucketBytes& bytes, bool with_pieces) {
  return concat("HORON_BUCKET_BYTES=", bytes.others, " HORON_FIRST_BUCKET_BYTES=", bytes.first,
                with_pieces ? concat(" HORON_PIECE_BYTES=", bytes.piece) : "");
}

// What the op chooses comes first: a piece of just its usual length is no other choice.
std::vector<int64_t> piece_choices(const core::PieceSizes& pieces, int64_t gradient_bytes) {
  std::vector<int64_t> result = {0};
  const double most = pieces.most > 0 ? octaves(pieces.most) : 0;
  const double least = std::max(kPieceMin, pieces.least > 0 ? octaves(pieces.least) : 0);
  for (const int64_t size : sizes(least, most, gradient_bytes, kPieceStride)) {
    if (size != pieces.usual) result.push_back(size);
  }
  return result;
}

// "12.3"
std::string three_digits(double value) {
  if (value == 0) return "0";
  const double scale = std::pow(10, std::max(0.0, 2 - std::floor(std::log10(std::abs(value)))));
  return core::number_text(std::round(value * scale) / scale);
}

// "0.83 (0.8 to 0.86) of the start's time"
std::string share_of_start(const core::Autotuner::Result& result) {
  return concat(three_digits(std::exp(-result.gain)), " (",
                three_digits(std::exp(-result.gain - result.noise)), " to ",
                three_digits(std::exp(-result.gain + result.noise)), ") of the start's time");
}

}  // namespace

void set_tuning_clock(TuningClock clock) { tuning_clock = clock == nullptr ? real_seconds : clock; }

BucketTuner::BucketTuner(const TuningSubject& subject, const core::Config& config)
    : name_(subject.name),
      facts_(subject.facts),
      pieces_(subject.pieces),
      in_use_(subject.in_use),
      began_s_(now_s()) {
  make_choices(subject);
  open_files(subject, config);
  core::Autotuner::Options options;
  options.samples = config.autotune_samples;
  options.steps = config.autotune_steps;
  const std::optional<size_t> known = find_known(subject);
  std::vector<core::TuningPoint> points;
  for (const Choice& choice : choices_) points.push_back(choice.point);
  tuner_.emplace(std::move(points), options, known);
}

BucketTuner::~BucketTuner() {
  if (has_turn_) tuned_now = nullptr;
}

core::TuningPoint BucketTuner::point_of(const BucketBytes& bytes) const {
  core::TuningPoint point = {(octaves(bytes.others) - kOthersMin) / (kOthersMax - kOthersMin),
                             (octaves(bytes.first) - kFirstMin) / (kFirstMax - kFirstMin)};
  if (!searches_pieces()) return point;
  const int64_t piece = bytes.piece == 0 ? pieces_.usual : bytes.piece;
  const double range = std::max(kPieceStride, octaves(pieces_.most) - kPieceMin);
  point.push_back((octaves(std::clamp(piece, pieces_.least, pieces_.most)) - kPieceMin) / range);
  return point;
}

// Sizes that lead to the same buckets, in the same pieces, are one choice.
void BucketTuner::make_choices(const TuningSubject& subject) {
  const std::vector<int64_t> pieces = searches_pieces()
                                          ? piece_choices(pieces_, subject.gradient_bytes)
                                          : std::vector{subject.start.piece};
  std::set<SlotGroups> known;
  const auto add_buckets = [&](BucketBytes bytes) {
    const auto [plan, is_new] = known.insert(subject.plan(bytes));
    if (!is_new) return;
    for (const int64_t piece : pieces) {
      bytes.piece = piece;
      if (bytes == subject.start) continue;
      choices_.push_back({bytes, point_of(bytes), static_cast<int64_t>(plan->size())});
    }
  };
  const auto buckets = static_cast<int64_t>(subject.plan(subject.start).size());
  choices_.push_back({subject.start, point_of(subject.start), buckets});
  add_buckets(subject.start);
  for (const int64_t others : sizes(kOthersMin, kOthersMax, subject.gradient_bytes)) {
    for (const int64_t first : sizes(kFirstMin, kFirstMax, subject.gradient_bytes)) {
      add_buckets({first, others});
    }
  }
}

void BucketTuner::open_files(const TuningSubject& subject, const core::Config& config) {
  try {
    if (!config.autotune_log.empty()) {
      log_.emplace(config.autotune_log + subject.file_suffix, in_settings(subject.start));
    }
  } catch (const Error& error) {
    core::log(core::LogLevel::Warn, error.what());
  }
  if (config.autotune_warm_start.empty()) return;
  file_.emplace(config.autotune_warm_start + subject.file_suffix);
}

// What an earlier run has kept, if it was for the same.
std::optional<size_t> BucketTuner::find_known(const TuningSubject& subject) {
  if (!file_) return std::nullopt;
  const auto refuse = [&](const std::string& why) {
    core::log(core::LogLevel::Warn,
              concat(why, "; autotune \"", name_, "\" searches for bucket sizes from scratch"));
    return std::nullopt;
  };
  std::optional<core::WarmStartFile::Entry> entry;
  try {
    entry = file_->find(name_);
  } catch (const Error& error) {
    file_.reset();
    return refuse(concat(error.what(), "; this run doesn't write to it"));
  }
  if (!entry) return std::nullopt;
  std::optional<BucketBytes> bytes = bytes_of(entry->settings, subject.start.piece);
  if (!bytes || entry->facts != facts_) {
    return refuse(concat("HORON_AUTOTUNE_WARM_START=", file_->path(), ": the entry of \"", name_,
                         "\" was found for ", entry->facts, ", but this job has ", facts_));
  }
  if (!searches_pieces()) bytes->piece = subject.start.piece;
  const SlotGroups buckets = subject.plan(*bytes);
  if (buckets == subject.plan(subject.start)) {
    *bytes = {subject.start.first, subject.start.others, bytes->piece};
  }
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i].bytes == *bytes) return i;
  }
  choices_.push_back({*bytes, point_of(*bytes), static_cast<int64_t>(buckets.size())});
  return choices_.size() - 1;
}

void BucketTuner::end_step() {
  look_at_step(now_s());
  last_end_s_ = now_s();  // what the search has cost belongs to no step
}

void BucketTuner::look_at_step(double end_s) {
  if (quiet_steps_ > 0) {
    --quiet_steps_;
    return;
  }
  if (!has_turn_) {
    const BucketTuner* none = nullptr;
    has_turn_ = tuned_now.compare_exchange_strong(none, this);
  }
  if (!has_turn_ || !last_end_s_ || wish()) return;
  const auto sample = tuner_->step(end_s - *last_end_s_);
  if (sample) report(*sample);
  if (tuner_->stage() == TuningStage::Done && !concluded_) conclude();
}

std::optional<BucketBytes> BucketTuner::wish() const {
  if (quiet_steps_ > 0 || wanted().bytes == in_use_) return std::nullopt;
  return wanted().bytes;
}

void BucketTuner::all_agreed() {
  in_use_ = wanted().bytes;
  tuner_->changed();
  tuner_->discard();
}

void BucketTuner::some_absent() {
  quiet_steps_ = kQuietSteps;
  tuner_->discard();
}

void BucketTuner::give_up(const std::string& why) {
  if (concluded_) return;
  concluded_ = true;
  tuner_->give_up();
  core::log(core::LogLevel::Info, concat("autotune \"", name_, "\": ", why,
                                         "; the search ends with ", in_words(wanted().bytes)));
}

bool BucketTuner::finished() const {
  return tuner_->stage() == TuningStage::Done && wanted().bytes == in_use_;
}

void BucketTuner::report(const core::Autotuner::Sample& sample) {
  const Choice& choice = choices_[sample.choice];
  if (sample.stage != stage_) samples_ = 0;
  stage_ = sample.stage;
  ++samples_;
  if (start_s_ == 0) start_s_ = sample.median_s;
  add_to_log(std::string(to_string(sample.stage)), choice, sample);
  core::log(core::LogLevel::Info,
            concat("autotune \"", name_, "\": ", to_string(sample.stage), " ", samples_, ": ",
                   in_words(choice.bytes), " (", choice.buckets,
                   "): ", three_digits(sample.median_s * 1e3), " ms a step, ",
                   three_digits(sample.median_s / start_s_), " of the first sample"));
}

void BucketTuner::conclude() {
  concluded_ = true;
  const core::Autotuner::Result& result = tuner_->result();
  const Choice& choice = choices_[result.choice];
  std::string text;
  if (choices_.size() == 1) {
    text = "all sizes give the same buckets, so there is nothing to tune";
  } else if (!result.compared) {
    text = concat("keeps ", in_words(choice.bytes), ": no other sizes are expected to be faster");
  } else if (result.choice == 0) {
    text = concat("goes back to ", in_words(choice.bytes), ": the best other sizes take ",
                  share_of_start(result));
  } else {
    text = concat("keeps ", in_words(choice.bytes), ", which take ", share_of_start(result),
                  ". To skip the search, set ", by_hand(choice.bytes, searches_pieces()));
  }
  core::log(core::LogLevel::Info, concat("autotune \"", name_, "\": ", text));
  if (choices_.size() == 1) return;
  core::Autotuner::Sample kept;
  kept.median_s = start_s_ * std::exp(result.choice == 0 ? 0 : -result.gain);
  add_to_log("kept", choice, kept);
  keep(choice);
}

void BucketTuner::add_to_log(const std::string& stage, const Choice& choice,
                             const core::Autotuner::Sample& sample) {
  if (!log_) return;
  core::TuningLog::Row row;
  row.subject = name_;
  row.elapsed_s = now_s() - began_s_;
  row.stage = stage;
  row.settings = in_settings(choice.bytes);
  row.buckets = choice.buckets;
  row.steps = sample.steps;
  row.step_s = sample.median_s;
  row.quartile_s = sample.quartile_s;
  row.over_start = start_s_ > 0 ? sample.median_s / start_s_ : 1;
  try {
    log_->add(row);
  } catch (const Error& error) {
    log_.reset();
    core::log(core::LogLevel::Warn, error.what());
  }
}

void BucketTuner::keep(const Choice& choice) {
  if (!file_) return;
  try {
    file_->save(name_, {facts_, in_settings(choice.bytes)});
  } catch (const Error& error) {
    core::log(core::LogLevel::Warn, error.what());
  }
}

}  // namespace horon::torch_detail
