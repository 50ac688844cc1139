#include "horon/torch_bindings/logging/logger.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/logging/reduced_values.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon {
namespace {

using core::concat;

[[noreturn]] void refuse_value(const std::string& name, std::string_view why) {
  throw Error(ErrorCode::InvalidArgument, concat("log(\"", name, "\"): ", why));
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct Logger::Value {
  torch_detail::LoggedValue here;
  // The same for tensors on a device that has not been waited for: float64 [].
  at::Tensor on_device;
  double device_weight = 0;

  void add(double value, double weight);
  void add(const at::Tensor& value, double weight);
  void settle();

 private:
  void forget_on_device();
};

void Logger::Value::add(double value, double weight) {
  if (here.reduce == Reduce::First) forget_on_device();  // values there came before this one
  torch_detail::combine(here, here.reduce == Reduce::Mean ? value * weight : value, weight);
}

void Logger::Value::add(const at::Tensor& value, double weight) {
  const at::Tensor number = value.to(at::kDouble).reshape({});
  if (on_device.defined() && on_device.device() != number.device()) settle();
  if (!on_device.defined() || here.reduce == Reduce::First) {
    on_device = here.reduce == Reduce::Mean ? number * weight : number.clone();
  } else if (here.reduce == Reduce::Mean) {
    on_device.add_(number, weight);
  } else if (here.reduce == Reduce::Sum) {
    on_device.add_(number);
  } else {
    on_device = here.reduce == Reduce::Min ? at::minimum(on_device, number)
                                           : at::maximum(on_device, number);
  }
  device_weight += weight;
}

void Logger::Value::settle() {
  if (!on_device.defined()) return;
  torch_detail::combine(here, on_device.item<double>(), device_weight);
  forget_on_device();
}

void Logger::Value::forget_on_device() {
  on_device.reset();
  device_weight = 0;
}

struct Logger::Output {
  std::unique_ptr<LogSink> sink;
  std::optional<LogRecord> unwritten;  // a record that it could not write, and gets once more
};

Logger::Logger(LoggerOptions options) : options_(std::move(options)) {}
// No flush() will report the fault any more.
Logger::~Logger() {
  if (!write_fault_.empty()) core::log(core::LogLevel::Error, concat("Logger: ", write_fault_));
}
Logger::Logger(Logger&&) noexcept = default;
Logger& Logger::operator=(Logger&&) noexcept = default;

void Logger::add(std::unique_ptr<LogSink> sink) {
  outputs_.push_back({std::move(sink), {}});
  paths_compared_ = false;
}

Logger::Value& Logger::value_of(const std::string& name, const LogAs& as) {
  if (!std::isfinite(as.weight.value) || as.weight.value < 0) {
    refuse_value(name, concat("the weight is ", as.weight.value, "; give the number of samples"));
  }
  if (name.empty() || name == "step" || name == "time") {
    refuse_value(name,
                 "the name must not be empty, \"step\" or \"time\", which records have already");
  }
  const auto known = std::find_if(values_.begin(), values_.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  if (known == values_.end()) {
    Value fresh;
    fresh.here.name = name;
    fresh.here.reduce = as.reduce;
    return values_.emplace_back(name, std::move(fresh)).second;
  }
  if (known->second.here.reduce != as.reduce) {
    refuse_value(name, "it was logged with another reduction before; use one reduction per name");
  }
  return known->second;
}

void Logger::log(const std::string& name, double value, const LogAs& as) {
  Value& logged = value_of(name, as);
  if (as.reduce == Reduce::Mean && as.weight.value == 0) return;  // a batch without samples
  // Only a mean has weights; else the weight tells whether there is a value.
  logged.add(value, as.reduce == Reduce::Mean ? as.weight.value : 1);
}

void Logger::log(const std::string& name, const at::Tensor& value, const LogAs& as) {
  if (!value.defined() || value.numel() != 1 || value.is_complex()) {
    refuse_value(name, value.defined()
                           ? concat("the tensor is ", value.scalar_type(), " ",
                                    core::shape_text(value.sizes()), "; give one real number")
                           : "the tensor is undefined");
  }
  const torch_detail::PlainMode plain;
  if (value.is_cpu()) {
    log(name, value.item<double>(), as);
    return;
  }
  Value& logged = value_of(name, as);
  if (as.reduce == Reduce::Mean && as.weight.value == 0) return;
  logged.add(value.detach(), as.reduce == Reduce::Mean ? as.weight.value : 1);
}

void Logger::log(const std::string& name, const metrics::BatchValue& value) {
  if (!value.is_mean_over_samples()) {
    refuse_value(name,
                 "this metric is not a mean over samples, so the mean over batches and ranks would "
                 "be wrong; log the result of compute()");
  }
  log(name, value.value, {.weight = value.weight.item<double>()});
}

void Logger::log_dict(const std::map<std::string, double>& values, const LogAs& as) {
  for (const auto& [name, value] : values) log(name, value, as);
}

void Logger::log_dict(const std::map<std::string, at::Tensor>& values, const LogAs& as) {
  for (const auto& [name, value] : values) log(name, value, as);
}

std::string Logger::message(int64_t step) {
  const torch_detail::PlainMode plain;
  torch_detail::LogMessage own;
  own.step = step;
  own.time = seconds_since_1970();
  own.fault = write_fault_;
  // The rank that writes sends its paths each time; the others send theirs once, to be compared.
  if (options_.process_set.rank() == 0 || !paths_compared_) {
    for (const Output& output : outputs_) {
      const std::string path = output.sink->destination();
      if (!path.empty()) own.paths.push_back(torch_detail::given_path(path));
    }
  }
  for (auto& [name, value] : values_) {
    value.settle();
    own.values.push_back(value.here);
  }
  return torch_detail::to_bytes(own);
}

LogRecord Logger::flush(int64_t step) {
  const ProcessSet& set = options_.process_set;
  const torch_detail::BlockingCallName name(options_.name, "log", set.id());
  const std::string& call = name.get();
  std::string own;
  try {
    own = message(step);
  } catch (...) {
    torch_detail::refuse_call(call, set, concat("\"", call, "\": ", core::current_error().what()));
  }
  const std::vector<std::string> all = allgather_bytes(own, {.name = call, .process_set = set});
  const torch_detail::ReducedLog reduced = torch_detail::reduce_over_ranks(call, all, set.ranks());
  values_.clear();
  if (!all.front().empty()) paths_compared_ = true;  // else the rank that writes has joined
  const bool tells_fault = reduced.mismatch.empty();
  if (tells_fault) write_fault_.clear();  // all ranks have it; what follows is of this record
  if (set.rank() == 0) write(reduced.record);
  if (!tells_fault) throw Error(ErrorCode::Mismatch, reduced.mismatch);
  if (!reduced.fault.empty()) throw Error(ErrorCode::OperationFailed, reduced.fault);
  return reduced.record;
}

void Logger::write(const LogRecord& record) {
  const auto writes = [this](LogSink& sink, const LogRecord& one) {
    try {
      sink.write(one);
      return true;
    } catch (...) {
      if (write_fault_.empty()) write_fault_ = core::current_error().what();
    }
    return false;
  };
  for (Output& output : outputs_) {
    // Tried again only once: a record that a sink never takes must not keep later ones from it.
    const std::optional<LogRecord> before = std::exchange(output.unwritten, std::nullopt);
    if (before) writes(*output.sink, *before);
    if (!writes(*output.sink, record)) output.unwritten = record;
  }
}

}  // namespace horon
