// How far the program is, on rank 0. On a terminal one line that is written again and again; in a
// file a line now and then, so that a log of a job does not fill with it.
//
//   horon::ProgressBar bar({.label = "epoch 1", .total = 938});
//   for (auto& batch : *loader) {
//     ...
//     bar.update(++step, "loss 0.42");   // cheap: writes a few times in a second at most
//   }
//   bar.finish();
//
//   epoch 1  34 % [=======>             ] 319/938  41.2/s  0:15 left  loss 0.42
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace horon {

struct ProgressBarOptions {
  std::string label = {};
  int64_t total = 0;                  // 0: not known
  int64_t initial = 0;                // done before, as by a job that goes on from a checkpoint
  std::FILE* out = stderr;            // borrowed
  std::optional<bool> terminal = {};  // default: whether `out` is one
  double terminal_interval_s = 0.1;   // no more often than that
  double file_interval_s = 30;
  int columns = 0;                     // of the terminal; 0: as it says, else 80
  std::function<double()> clock = {};  // seconds; default: a steady one
};

// Local, one thread at a time. Silent on other ranks.
class ProgressBar {
 public:
  explicit ProgressBar(ProgressBarOptions options);
  // As finish().
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `done`: including what was done before (`initial`).
  void update(int64_t done, std::string_view note = {});
  // A line of its own above the bar.
  void print(std::string_view line);
  // Writes where it stands, and ends the line. Once; a later update() does nothing.
  void finish();

 private:
  std::string text(double now) const;
  void write(double now);

  ProgressBarOptions options_;
  bool terminal_ = false;
  bool active_ = false;
  bool shown_ = false;  // the latest state has been written
  int64_t done_ = 0;
  std::string note_;
  double start_ = 0;
  double next_ = 0;  // no line before
};

}  // namespace horon
