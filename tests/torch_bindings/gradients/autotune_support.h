// A session that autotunes, and a training whose steps take as long as a test says: what buckets
// and pieces cost is planted in the clock by which steps are timed, so that the best sizes are
// known.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/gradients/bucket_tuner.h"

namespace horon::testing_support {

inline constexpr int kTunedParameters = 12;
inline constexpr int64_t kElementsOfEach = 16 << 10;  // of each: 64 KiB

inline std::string content_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline int lines_with(const std::string& text, const std::string& words) {
  int count = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) count += line.find(words) != line.npos ? 1 : 0;
  return count;
}

// What steps have cost, on the clock of the tuner.
inline double clock_s = 0;

class AutotuneFixture : public testing::Test {
 protected:
  AutotuneFixture()
      : path_(testing::TempDir() + "autotune." + std::to_string(::getpid()) + "." +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {}
  ~AutotuneFixture() override {
    for (const char* const suffix : {".csv", ".warm"}) (void)std::remove((path_ + suffix).c_str());
  }

  // A session with these knobs, in the place of the one that all tests have.
  void start(std::map<std::string, std::string> knobs) {
    knobs.insert({{"HORON_AUTOTUNE", "1"},
                  {"HORON_AUTOTUNE_STEPS", "2"},
                  {"HORON_AUTOTUNE_SAMPLES", "6"},
                  {"HORON_AUTOTUNE_LOG", path_ + ".csv"},
                  {"HORON_AUTOTUNE_WARM_START", path_ + ".warm"},
                  {"HORON_DEAD_AFTER_S", "0"},  // nothing thaws because a rank is late
                  {"HORON_STALL_WARN_S", "0"}});
    restarted_ = true;
    shutdown();
    torch_detail::set_tuning_clock([] { return clock_s; });
    init({.set = std::move(knobs)});
  }
  void TearDown() override {
    if (!restarted_) return;
    shutdown();
    torch_detail::set_tuning_clock(nullptr);
    init();
  }
  std::string table() const { return content_of(path_ + ".csv"); }
  std::string kept() const { return content_of(path_ + ".warm"); }

  const std::string path_;

 private:
  bool restarted_ = false;
};

// Trains parameters of known gradients. A step takes `of_a_bucket_s` for each bucket, and some
// noise.
class CostlyTraining {
 public:
  explicit CostlyTraining(double of_a_bucket_s, GradientReducerOptions options = {})
      : of_a_bucket_s_(of_a_bucket_s), reducer_(parameters_, options) {}

  // `looks`: checks that all ranks have the same number of buckets, which takes a collective.
  void step(bool looks = true) {
    for (const at::Tensor& w : parameters_) w.mutable_grad().reset();
    at::Tensor loss = at::zeros({});
    for (const at::Tensor& w : parameters_) loss = loss + weighted(w, rank() + 1);
    loss.backward();
    if (looks) {
      const std::vector<int64_t> of_ranks = allgather_object(buckets());
      EXPECT_THAT(of_ranks, testing::Each(of_ranks.front()));  // all change together
    }
    clock_s += of_a_bucket_s_ * static_cast<double>(buckets()) + noise_(random_);
    clock_s += of_an_octave_s_ * octaves_from_best_piece();
    reducer_.synchronize();
  }
  // Looks at the gradients now and then.
  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      step();
      if (i % 16 > 0) continue;
      for (const at::Tensor& w : parameters_) expect_gradient(w, mean_of_ranks());
    }
  }
  // Runs steps until the first rank has written down a result.
  void steps_until_kept(const std::string& path) {
    for (int i = 0; i < 100; ++i) {
      steps(16);
      const bool kept =
          rank() != 0 || content_of(path).find(reducer_.name() + "\t") != std::string::npos;
      if (broadcast_object(static_cast<int64_t>(kept)) != 0) return steps(16);
    }
    ADD_FAILURE() << "autotuning has not ended";
  }
  int64_t buckets() const { return reducer_.statistics().buckets; }
  int64_t piece_bytes() const { return reducer_.statistics().piece_bytes; }
  // Steps then take `of_an_octave_s` longer for each octave between their pieces and the best.
  void plant_best_piece(double of_an_octave_s) { of_an_octave_s_ = of_an_octave_s; }
  static constexpr int64_t kBestPiece = 512 << 10;
  GradientReducer& reducer() { return reducer_; }

 private:
  static std::vector<at::Tensor> make_parameters() {
    std::vector<at::Tensor> all;
    for (int i = 0; i < kTunedParameters; ++i) all.push_back(leaf({kElementsOfEach}));
    return all;
  }

  double octaves_from_best_piece() const {
    constexpr int64_t about_usual = 64 << 10;  // what the collective chooses for such buckets
    const int64_t piece = piece_bytes() == 0 ? about_usual : piece_bytes();
    return std::abs(std::log2(static_cast<double>(piece) / kBestPiece));
  }

  const std::vector<at::Tensor> parameters_ = make_parameters();
  const double of_a_bucket_s_;
  double of_an_octave_s_ = 0;
  std::mt19937 random_{1};
  std::uniform_real_distribution<double> noise_{0.001, 0.0012};
  GradientReducer reducer_;
};

inline constexpr double kCostly = 0.001, kNothing = 0;

// One bucket for each parameter.
inline const std::map<std::string, std::string> kManyBuckets = {
    {"HORON_BUCKET_BYTES", "1KiB"}, {"HORON_FIRST_BUCKET_BYTES", "1KiB"}};
inline const std::map<std::string, std::string> kOneBucket = {
    {"HORON_BUCKET_BYTES", "64MiB"}, {"HORON_FIRST_BUCKET_BYTES", "16MiB"}};

}  // namespace horon::testing_support
