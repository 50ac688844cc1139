// Logged values as text: lines for people, JSON lines, a table (CSV), and a file for Prometheus.
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "horon/torch_bindings/logging/append_file.h"
#include "horon/torch_bindings/logging/log_sink.h"

namespace horon {

// "step 120  loss 0.4213  accuracy 0.87" on standard output, or another file that is open.
class ConsoleSink : public LogSink {
 public:
  explicit ConsoleSink(std::FILE* out = stdout) : out_(out) {}
  void write(const LogRecord& record) override;

 private:
  std::FILE* out_;
};

struct FileSinkOptions {
  // Append to what is there, after a restart; a line that is cut off gets an end. False: empty the
  // file.
  bool append = true;
};

// One object a line: {"step": 120, "time": 1763816400.5, "loss": 0.4213}. Numbers read back as they
// were; NaN and infinities, which JSON lacks, are null.
class JsonlSink : public LogSink {
 public:
  explicit JsonlSink(std::string path, const FileSinkOptions& options = {})
      : path_(std::move(path)), options_(options) {}
  void write(const LogRecord& record) override;
  std::string destination() const override { return path_; }

 private:
  const std::string path_;
  const FileSinkOptions options_;
  torch_detail::AppendFile file_;
};

// A line of names, then a line for each record: step, time, and a column for each name. A cell
// without a value is empty. A name that comes later gets a column at the end, for which the file is
// written anew, and replaced as a whole; a pipe or a terminal gets one more line of names. The end
// of a line in a name becomes a space.
class CsvSink : public LogSink {
 public:
  explicit CsvSink(std::string path, const FileSinkOptions& options = {})
      : path_(std::move(path)), options_(options) {}
  void write(const LogRecord& record) override;
  std::string destination() const override { return path_; }

 private:
  void open(const LogRecord& record);
  void widen(const LogRecord& record);

  const std::string path_;
  const FileSinkOptions options_;
  std::vector<std::string> columns_;
  torch_detail::AppendFile file_;
};

// The latest values in the text format of Prometheus, for node_exporter's textfile collector: a
// gauge for each name, horon_loss{name="train/loss"} 0.42, and horon_step and
// horon_time_seconds. The file is replaced as a whole. Letters that the format does not allow
// become "_"; the label has the name as it was logged.
class PrometheusSink : public LogSink {
 public:
  explicit PrometheusSink(std::string path) : path_(std::move(path)) {}
  void write(const LogRecord& record) override;
  std::string destination() const override { return path_; }

 private:
  const std::string path_;
  std::vector<std::pair<std::string, double>> latest_;
};

}  // namespace horon
