#include "training_support.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <type_traits>

#include <ATen/core/Tensor.h>
#include <CLI/CLI.hpp>

#include "horon/core/base/config.h"
#include "horon/core/base/error.h"
#include "horon/core/base/replace_file.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/guards/rank_zero.h"
#include "horon/torch_bindings/state/replicas.h"

namespace example {
namespace {

// An error that every rank has got: it is enough if one rank reports it.
struct SharedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

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

template <class Number>
CLI::Validator at_least(Number least) {
  return CLI::Validator(
      [least](std::string& text) {
        Number number = 0;
        // CLI11 turns a number that does not fit into the largest one.
        errno = 0;
        const bool wraps = std::is_unsigned_v<Number> && text.find('-') != std::string::npos;
        const bool good =
            CLI::detail::lexical_cast(text, number) && errno != ERANGE && !wraps && number >= least;
        return good ? std::string()
                    : "'" + text + "' is not a number of " + CLI::detail::to_string(least) +
                          " or more";
      },
      "NUMBER");
}

std::string with_commas(double number) {
  std::string digits = std::to_string(static_cast<int64_t>(number));
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

}  // namespace

bool asks_help(int argc, char** argv) {
  return std::any_of(argv + 1, argv + argc, [](std::string_view argument) {
    return argument == "--help" || argument == "-h";
  });
}

bool is_first() {
  if (horon::last_rank() >= 0) return horon::is_rank_zero();
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (horon::core::environment_has(name)) return horon::core::environment_value(name) == "0";
  }
  return true;
}

class Flags::Parser : public CLI::App {
 public:
  using CLI::App::App;

  template <class Number>
  void number(const char* name, Number& value, const char* help, Number least) {
    add_option(name, value, help)->check(at_least(least))->capture_default_str();
  }
};

Flags::Flags(const std::string& about) : parser_(std::make_unique<Parser>(about)) {}
Flags::~Flags() = default;

Flags& Flags::add(const char* name, double& value, const char* help, double least) {
  parser_->number(name, value, help, least);
  return *this;
}
Flags& Flags::add(const char* name, int64_t& value, const char* help, int64_t least) {
  parser_->number(name, value, help, least);
  return *this;
}
Flags& Flags::add(const char* name, size_t& value, const char* help, size_t least) {
  parser_->number(name, value, help, least);
  return *this;
}
Flags& Flags::add(const char* name, std::string& value, const char* help) {
  parser_->add_option(name, value, help)->capture_default_str();
  return *this;
}
Flags& Flags::add(const char* name, bool& value, const char* help) {
  parser_->add_flag(name, value, help);
  return *this;
}

bool Flags::parse(int argc, char** argv, bool speaks) {
  try {
    parser_->parse(argc, argv);
  } catch (const CLI::Success& help) {
    if (speaks) parser_->exit(help);
    return false;
  } catch (const CLI::ParseError& error) {
    throw SharedError(first_line(error) + " (--help lists the flags)");
  }
  return true;
}

int report(const char* program, const std::exception& error, bool speaks) {
  if (speaks || !all_ranks_throw(error)) {
    std::fprintf(stderr, "%s: %s\n", program, first_line(error).c_str());
  }
  return 1;
}

void print(const char* format, ...) {
  if (!horon::is_rank_zero()) return;
  std::va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
  std::fflush(stdout);
}

void require_writable(const std::string& path) {
  horon::on_all_ranks([&] {
    if (horon::rank() != 0) return;
    horon::core::require_replaceable(path);
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

void require_equal_parameters(const torch::nn::Module& model) {
  horon::check_replicas_equal(model);
  print("all %d ranks hold equal parameters\n", horon::size());
}

Progress::Progress(int64_t epochs, size_t samples, size_t batch_size, int64_t log_every)
    : epochs_(epochs),
      samples_(static_cast<int64_t>(samples)),
      batch_size_(static_cast<int64_t>(batch_size)),
      log_every_(log_every),
      steps_per_epoch_((samples_ + batch_size_ - 1) / batch_size_),
      stretch_start_(Clock::now()),
      epoch_start_(stretch_start_) {
  print("training with %d %s, %zu images per rank and step, %" PRId64 " steps per epoch\n",
        horon::size(), horon::size() == 1 ? "rank" : "ranks", batch_size, steps_per_epoch_);
}

void Progress::step(int64_t epoch, const at::Tensor& loss, double wait_s) {
  ++step_;
  if (step_ % log_every_ != 0 && step_ != steps_per_epoch_) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - stretch_start_).count();
  const int64_t images = std::min(step_ * batch_size_, samples_) - counted_from_ * batch_size_;
  const at::Tensor mean = horon::allreduce(loss, {.name = "loss"});
  print("epoch %" PRId64 "/%" PRId64 "  step %" PRId64 "/%" PRId64
        "  loss %.4f  %s images/s  %.1f %% of the time waiting for "
        "communication\n",
        epoch, epochs_, step_, steps_per_epoch_, mean.item<double>(),
        with_commas(static_cast<double>(images * horon::size()) / seconds).c_str(),
        100.0 * (wait_s - wait_before_s_) / seconds);
  counted_from_ = step_;
  wait_before_s_ = wait_s;
  stretch_start_ = Clock::now();
}

void Progress::end_epoch(int64_t epoch, double accuracy) {
  const Clock::time_point now = Clock::now();
  print("epoch %" PRId64 "/%" PRId64 "  %.1f s  accuracy on the test images %.2f %%\n", epoch,
        epochs_, std::chrono::duration<double>(now - epoch_start_).count(), accuracy);
  step_ = counted_from_ = 0;
  epoch_start_ = stretch_start_ = now;
}

}  // namespace example
