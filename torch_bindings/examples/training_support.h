// What any training program has around its loop, kept out of the examples' way: flags, errors,
// files, progress.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/serialize.h>

namespace example {

// The program is started for its help only, which comes alone: without horon::init().
bool asks_help(int argc, char** argv);

// This is rank 0. Before horon::init() as far as the launcher's variables tell.
bool is_first();

// The flags of a program. Each stands for a variable, whose value is the default that --help shows.
class Flags {
 public:
  explicit Flags(const std::string& about);
  ~Flags();
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  // Numbers below `least` are refused.
  Flags& add(const char* name, double& value, const char* help, double least = 0);
  Flags& add(const char* name, int64_t& value, const char* help, int64_t least = 1);
  Flags& add(const char* name, size_t& value, const char* help, size_t least = 1);
  Flags& add(const char* name, std::string& value, const char* help);
  Flags& add(const char* name, bool& value,
             const char* help);  // without a value: it becomes true

  // False if all is said already (--help). Throws std::runtime_error for a flag that is wrong, on
  // all ranks alike. `speaks`: this rank prints the help; only a program that starts MPI and parses
  // before horon::init() has to say which rank does.
  bool parse(int argc, char** argv, bool speaks = is_first());

 private:
  class Parser;
  std::unique_ptr<Parser> parser_;
};

// The line for an error, on the rank that it belongs to; the exit code. `speaks`: as above.
int report(const char* program, const std::exception& error, bool speaks = is_first());

// As printf(), on rank 0.
__attribute__((format(printf, 1, 2))) void print(const char* format, ...);

// Collective: throws on all ranks if rank 0 can't write there; better before the training than
// after.
void require_writable(const std::string& path);

void read_on_root(const std::string& path, const std::function<void()>& read);

// Collective: rank 0 reads a model; broadcast_parameters() brings it to the others.
template <class Model>
void load_on_root(Model& model, const std::string& path) {
  read_on_root(path, [&] { torch::load(model, path); });
}

// Collective: throws on all ranks unless each has the same bits in its parameters and buffers.
void require_equal_parameters(const torch::nn::Module& model);

// The lines of rank 0: loss (mean of all ranks), speed of all ranks, share of the time spent
// waiting for gradients.
class Progress {
 public:
  // `samples`: of this rank in one epoch. `batch_size`: of one rank.
  Progress(int64_t epochs, size_t samples, size_t batch_size, int64_t log_every);

  // Collective every log_every steps. `wait_s`: seconds waited for communication since the start.
  void step(int64_t epoch, const at::Tensor& loss, double wait_s);
  void end_epoch(int64_t epoch, double accuracy);

 private:
  using Clock = std::chrono::steady_clock;

  const int64_t epochs_, samples_, batch_size_, log_every_, steps_per_epoch_;
  int64_t step_ = 0;          // of this epoch
  int64_t counted_from_ = 0;  // first step of the stretch that the next line speaks of
  double wait_before_s_ = 0;
  Clock::time_point stretch_start_;
  Clock::time_point epoch_start_;
};

}  // namespace example
