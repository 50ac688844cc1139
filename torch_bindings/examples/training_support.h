// What any training program has around its loop, kept out of the example's way: flags, progress,
// files, errors.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <torch/nn/module.h>
#include <torch/serialize.h>

namespace example {

struct Settings {
  std::string data = "/usr/share/datasets/fashion-mnist";
  int64_t epochs = 5;
  size_t batch_size = 64;  // per rank
  double lr = 0.025;       // of one rank; multiplied by their number
  uint64_t seed = 1;
  std::string save = "fashion_mnist.pt";
  std::string evaluate;  // a saved model: evaluate it and do not train
  int64_t log_every = 100;
};

// Nothing if all is said already (--help). Throws std::runtime_error for a flag that is wrong.
std::optional<Settings> parse(int argc, char** argv);

// The line for an error, on the rank that it belongs to; the exit code.
int report(const std::exception& error);

// Collective: throws on all ranks unless each has the same bits in its parameters and buffers.
void require_equal_parameters(const torch::nn::Module& model);

// Rank 0 writes a temporary file and renames it: a reader never sees half a model.
void replace_file(const std::string& path, const std::function<void(const std::string&)>& write);
// Collective: throws on all ranks if rank 0 can't write there; better before the training than
// after.
void require_writable(const std::string& path);
void print_line(const std::string& line);

template <class Model>
void save_on_root(const Model& model, const std::string& path) {
  replace_file(path, [&](const std::string& temporary) { torch::save(model, temporary); });
  print_line("saved " + path);
}

void read_on_root(const std::string& path, const std::function<void()>& read);

template <class Model>
void load_on_root(Model& model, const std::string& path) {
  read_on_root(path, [&] { torch::load(model, path); });
}

void print_accuracy(double percent);

// The lines of rank 0: loss (mean of all ranks), speed of all ranks, share of the time spent
// waiting for gradients.
class Progress {
 public:
  Progress(const Settings& settings, size_t samples_per_epoch);

  // Collective every log_every steps. `wait_s`: seconds waited for communication since the start.
  void step(int64_t epoch, const at::Tensor& loss, double wait_s);
  void end_epoch(int64_t epoch, double accuracy);

 private:
  using Clock = std::chrono::steady_clock;

  const Settings settings_;
  const int64_t samples_;  // of this rank in one epoch
  const int64_t steps_per_epoch_;
  int64_t step_ = 0;          // of this epoch
  int64_t counted_from_ = 0;  // first step of the stretch that the next line speaks of
  double wait_before_s_ = 0;
  Clock::time_point stretch_start_;
  Clock::time_point epoch_start_;
};

}  // namespace example
