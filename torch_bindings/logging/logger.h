// Logs the values of all ranks as one.
//
//   horon::Logger logger;
//   logger.add(std::make_unique<horon::ConsoleSink>());
//   logger.add(std::make_unique<horon::JsonlSink>("train.jsonl"));
//   logger.add(std::make_unique<horon::TensorBoardSink>("runs/first"));
//   for (auto& batch : *loader) {
//     ...
//     logger.log("loss", loss, {.weight = batch.target.size(0)});
//     logger.log("samples", batch.target.size(0), {.reduce = horon::Reduce::Sum});
//     if (++step % 100 == 0) logger.flush(step);     // collective: one call for all values
//   }
//
// Between two flushes log() adds up on this rank, and flush() adds up the ranks: so a mean is that
// of all samples of all steps and ranks, if weights are numbers of samples. Ranks may have logged
// different names, unequally often, or nothing. The lowest rank of the set writes; flush() gives
// the same record to all, with the time of the rank that writes. Once that rank has joined, what
// flush() gives to the others is in no file: where data are uneven, flush after join().
//
// Values: numbers, or tensors of one element on any device; a GPU is not waited for before flush().
// One thread at a time. Errors: InvalidArgument from log(): more than one element, a weight that is
// negative or not finite, a name with two kinds of reduction or that records use themselves
// ("step", "time"), a value that can't be averaged. Mismatch from flush(), on all ranks, where they
// are at different steps; where one has a sink for a path for which the rank that writes has none
// (that rank alone may have sinks that others lack); or where they reduce a name in different ways:
// the values of this name are lost, the other names have gone to all sinks. OperationFailed from
// flush(), on all ranks, where a sink could not write the record of the flush before: the ranks
// don't wait for the writing. That record has then been given to the sink once more, and this
// flush's to all sinks. (If the last record fails, the destructor says so on standard error.) After
// any other error of flush() the values are still there for the next one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/logging/log_sink.h"
#include "horon/torch_bindings/metrics/metric.h"

namespace horon {

enum class Reduce : uint8_t {
  Mean,  // weighted
  Sum,
  Min,  // a NaN wins
  Max,
  First,  // the latest of the lowest rank that has one: for what is alike on all ranks
};

// Converts from any number: within braces an integer would not convert to a double.
struct LogWeight {
  template <class Number>
  requires std::is_arithmetic_v<Number> LogWeight(Number number)
      : value(static_cast<double>(number)) {}
  double value;
};

struct LogAs {
  Reduce reduce = Reduce::Mean;
  LogWeight weight = 1;  // Mean: of how many samples; 0: none
};

struct LoggerOptions {
  std::string name = {};  // of its collectives; empty: "log.noname.N"
  ProcessSet process_set = {};
};

class Logger {
 public:
  explicit Logger(LoggerOptions options = {});
  ~Logger();
  Logger(Logger&&) noexcept;
  Logger& operator=(Logger&&) noexcept;

  // Where records go from now on.
  void add(std::unique_ptr<LogSink> sink);

  void log(const std::string& name, double value, const LogAs& as = {});
  void log(const std::string& name, const at::Tensor& value, const LogAs& as = {});
  // The value of a batch (forward() of a metric), weighted by its samples. Throws if it is no mean
  // over samples: the mean of the ranks' F1 is not F1. Log what compute() gives instead.
  void log(const std::string& name, const metrics::BatchValue& value);
  void log_dict(const std::map<std::string, double>& values, const LogAs& as = {});
  // As MetricCollection::compute() gives them: alike on all ranks.
  void log_dict(const std::map<std::string, at::Tensor>& values,
                const LogAs& as = {.reduce = Reduce::First});

  // Reduces what all ranks have logged since the flush before, and writes the record to the sinks:
  // the names of the lowest rank in its order, then those that only higher ranks have. Collective.
  // A Mean of weight 0 is left out.
  LogRecord flush(int64_t step);

 private:
  struct Value;
  struct Output;

  Value& value_of(const std::string& name, const LogAs& as);
  std::string message(int64_t step);
  void write(const LogRecord& record);

  LoggerOptions options_;
  std::vector<Output> outputs_;
  std::vector<std::pair<std::string, Value>> values_;
  std::string write_fault_;
  bool paths_compared_ = false;  // of all sinks, with those of the rank that writes
};

}  // namespace horon
