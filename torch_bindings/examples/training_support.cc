#include "training_support.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <unistd.h>

#include <ATen/core/Tensor.h>
#include <CLI/CLI.hpp>

#include "horon/core/base/error.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/state/replicas.h"

namespace example {
namespace {

// An error that every rank has got: one of them is enough to say it.
struct SharedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

bool speaks() { return horon::last_rank() <= 0; }

// LibTorch's errors carry a backtrace behind the first line.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// What init(), on_all_ranks(), check_replicas_equal() and collectives on which the ranks differ
// throw on every rank alike.
bool all_ranks_throw(const std::exception& error) {
  if (dynamic_cast<const SharedError*>(&error) != nullptr) return true;
  const auto* known = dynamic_cast<const horon::Error*>(&error);
  if (known == nullptr) return false;
  using enum horon::ErrorCode;
  const auto alike = {Config, InvalidArgument, Mismatch, OperationFailed};
  return std::find(alike.begin(), alike.end(), known->code()) != alike.end();
}

CLI::Validator at_least(double least) {
  return CLI::Validator(
      [least](std::string& text) {
        double number = 0;
        const bool good = CLI::detail::lexical_cast(text, number) && number >= least;
        return good
                   ? std::string()
                   : "'" + text + "' is no number of " + CLI::detail::to_string(least) + " or more";
      },
      "NUMBER");
}

std::string with_commas(double number) {
  std::string digits = std::to_string(static_cast<int64_t>(number));
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

// Beside the file, so that the rename stays within one file system.
std::string temporary_of(const std::string& path) {
  return path + ".tmp" + std::to_string(getpid());
}

__attribute__((format(printf, 1, 2))) void print(const char* format, ...) {
  if (!speaks()) return;
  std::va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
  std::fflush(stdout);
}

}  // namespace

std::optional<Settings> parse(int argc, char** argv) {
  Settings settings;
  CLI::App app("Trains a small network on Fashion-MNIST with all ranks of an MPI job");
  app.add_option("--data", settings.data, "folder with IDX files in MNIST's naming, .gz or not");
  app.add_option("--epochs", settings.epochs, "passes over the training images")
      ->check(at_least(0));
  app.add_option("--batch-size", settings.batch_size, "images per rank and step")
      ->check(at_least(1));
  app.add_option("--lr", settings.lr, "learning rate of one rank, multiplied by the ranks")
      ->check(at_least(0));
  app.add_option("--seed", settings.seed, "for the first weights and the order of the images");
  app.add_option("--save", settings.save, "file for the trained model");
  app.add_option("--evaluate", settings.evaluate, "evaluate this saved model, do not train");
  app.add_option("--log-every", settings.log_every, "steps between two lines of progress")
      ->check(at_least(1));
  for (CLI::Option* option : app.get_options()) option->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    if (speaks()) app.exit(help);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw SharedError(first_line(error) + " (--help lists the flags)");
  }
  return settings;
}

int report(const std::exception& error) {
  if (speaks() || !all_ranks_throw(error)) {
    std::fprintf(stderr, "fashion_mnist: %s\n", first_line(error).c_str());
  }
  return 1;
}

void require_equal_parameters(const torch::nn::Module& model) {
  horon::check_replicas_equal(model);
  print("all %d ranks hold equal parameters\n", horon::size());
}

void require_writable(const std::string& path) {
  horon::on_all_ranks([&] {
    if (horon::rank() != 0) return;
    const std::string temporary = temporary_of(path);
    if (!std::ofstream(temporary)) throw std::runtime_error("can't write " + path);
    std::filesystem::remove(temporary);
  });
}

void replace_file(const std::string& path, const std::function<void(const std::string&)>& write) {
  horon::on_all_ranks([&] {
    if (horon::rank() != 0) return;
    const std::string temporary = temporary_of(path);
    try {
      write(temporary);
      std::filesystem::rename(temporary, path);
    } catch (const std::exception& error) {
      std::error_code ignored;
      std::filesystem::remove(temporary, ignored);
      throw std::runtime_error("can't save " + path + ": " + first_line(error));
    }
  });
}

void read_on_root(const std::string& path, const std::function<void()>& read) {
  horon::on_all_ranks([&] {
    if (horon::rank() != 0) return;
    if (!std::filesystem::is_regular_file(path)) throw std::runtime_error(path + ": no such file");
    try {
      read();
    } catch (const std::exception& error) {
      const std::string why = first_line(error);
      throw std::runtime_error("can't load " + path + ": " + why.substr(0, why.find(". ")));
    }
  });
}

void print_line(const std::string& line) { print("%s\n", line.c_str()); }

void print_accuracy(double percent) { print("test accuracy %.2f %%\n", percent); }

Progress::Progress(const Settings& settings, size_t samples_per_epoch)
    : settings_(settings),
      samples_(static_cast<int64_t>(samples_per_epoch)),
      steps_per_epoch_(static_cast<int64_t>((samples_per_epoch + settings.batch_size - 1) /
                                            settings.batch_size)),
      stretch_start_(Clock::now()),
      epoch_start_(stretch_start_) {
  print("training with %d %s, %zu images per rank and step, %" PRId64 " steps per epoch\n",
        horon::size(), horon::size() == 1 ? "rank" : "ranks", settings.batch_size,
        steps_per_epoch_);
}

void Progress::step(int64_t epoch, const at::Tensor& loss, double wait_s) {
  ++step_;
  if (step_ % settings_.log_every != 0 && step_ != steps_per_epoch_) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - stretch_start_).count();
  const auto batch = static_cast<int64_t>(settings_.batch_size);
  const int64_t images = std::min(step_ * batch, samples_) - counted_from_ * batch;
  const at::Tensor mean = horon::allreduce(loss, {.name = "loss"});
  print("epoch %" PRId64 "/%" PRId64 "  step %" PRId64 "/%" PRId64
        "  loss %.4f  %s images/s  %.1f %% of the time waiting for communication\n",
        epoch, settings_.epochs, step_, steps_per_epoch_, mean.item<double>(),
        with_commas(static_cast<double>(images * horon::size()) / seconds).c_str(),
        100.0 * (wait_s - wait_before_s_) / seconds);
  counted_from_ = step_;
  wait_before_s_ = wait_s;
  stretch_start_ = Clock::now();
}

void Progress::end_epoch(int64_t epoch, double accuracy) {
  const Clock::time_point now = Clock::now();
  print("epoch %" PRId64 "/%" PRId64 "  %.1f s  accuracy on the test images %.2f %%\n", epoch,
        settings_.epochs, std::chrono::duration<double>(now - epoch_start_).count(), accuracy);
  step_ = counted_from_ = 0;
  epoch_start_ = stretch_start_ = now;
}

}  // namespace example
