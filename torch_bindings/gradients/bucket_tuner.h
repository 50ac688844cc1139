// HORON_AUTOTUNE for one reducer: which sizes of buckets, and of the pieces in which these are
// reduced, make its steps fastest. One rank of the process set has it, measures its own steps, and
// decides; all ranks wait for each other in each step, so its times are those of all. The reducer
// tells the others (reducer_tuning.cc).
//
// What is searched: HORON_BUCKET_BYTES from 64 KiB to 64 MiB, HORON_FIRST_BUCKET_BYTES from 16 KiB
// to 64 MiB, in steps of half an octave, as far as they lead to different buckets; and
// HORON_PIECE_BYTES, if the op works in pieces: its own choice, and octaves from 32 KiB to the
// longest piece that it supports. core/tuning says how. Of several reducers in a process one is
// tuned at a time, since their steps overlap.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "horon/core/base/config.h"
#include "horon/core/execution/piece_sizes.h"
#include "horon/core/tuning/autotuner.h"
#include "horon/core/tuning/tuning_log.h"
#include "horon/core/tuning/warm_start_file.h"
#include "horon/torch_bindings/gradients/plan.h"

namespace horon::torch_detail {

// What is tuned.
struct TuningSubject {
  std::string name;         // of the reducer
  std::string facts;        // under which a result holds, in words
  std::string file_suffix;  // of this process set
  int64_t gradient_bytes = 0;
  BucketBytes start;  // as configured: the search begins there, and ends there if nothing is faster
  BucketBytes in_use;
  std::function<SlotGroups(const BucketBytes&)> plan;  // used in the constructor alone
  core::PieceSizes pieces;                             // all 0: pieces are not searched
};

// Seconds, never going back. Tests put a clock of their own in the place of the real one, between
// sessions; null puts the real one back.
using TuningClock = double (*)();
void set_tuning_clock(TuningClock clock);

class BucketTuner {
 public:
  // Reads and writes files; what goes wrong with them is logged, once.
  BucketTuner(const TuningSubject& subject, const core::Config& config);
  ~BucketTuner();
  BucketTuner(const BucketTuner&) = delete;
  BucketTuner& operator=(const BucketTuner&) = delete;

  // At the end of each step.
  void end_step();
  // What all ranks are to use; empty if they do.
  std::optional<BucketBytes> wish() const;
  // All ranks use the wish from the next round on.
  void all_agreed();
  // Some ranks had joined and did not hear the wish. They are told again later.
  void some_absent();
  // Tuning is of no use: back to the start.
  void give_up(const std::string& why);
  // The result is in use.
  bool finished() const;

 private:
  struct Choice {
    BucketBytes bytes;
    core::TuningPoint point;
    int64_t buckets = 0;
  };

  bool searches_pieces() const { return pieces_.most > 0; }
  core::TuningPoint point_of(const BucketBytes& bytes) const;
  void make_choices(const TuningSubject& subject);
  void open_files(const TuningSubject& subject, const core::Config& config);
  std::optional<size_t> find_known(const TuningSubject& subject);
  const Choice& wanted() const { return choices_[tuner_->wanted()]; }
  void look_at_step(double end_s);
  void report(const core::Autotuner::Sample& sample);
  void conclude();
  void add_to_log(const std::string& stage, const Choice& choice,
                  const core::Autotuner::Sample& sample);
  void keep(const Choice& choice);

  const std::string name_;
  const std::string facts_;
  const core::PieceSizes pieces_;
  BucketBytes in_use_;
  std::vector<Choice> choices_;
  std::optional<core::TuningLog> log_;
  std::optional<core::WarmStartFile> file_;
  std::optional<core::Autotuner> tuner_;
  int64_t samples_ = 0;  // of this stage
  core::Autotuner::Stage stage_ = core::Autotuner::Stage::Search;
  double start_s_ = 0;  // seconds of a step in the first sample
  const double began_s_;
  std::optional<double> last_end_s_;
  int64_t quiet_steps_ = 0;
  bool has_turn_ = false;
  bool concluded_ = false;
};

}  // namespace horon::torch_detail
