// Where logged values go.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace horon {

struct LogRecord {
  int64_t step = 0;
  double time = 0;                                     // seconds since 1970
  std::vector<std::pair<std::string, double>> values;  // each name once
};

// Called by one rank alone, by one thread at a time. A sink opens its file with the first record,
// so it may be made on all ranks. Throws Error(OperationFailed) that names the file.
class LogSink {
 public:
  virtual ~LogSink() = default;
  // What has been written is in the file when this returns: another process may read it.
  virtual void write(const LogRecord& record) = 0;
  // The file or folder that it writes to. Logger::flush() uses it to find sinks of other ranks for
  // which the rank that writes has none. Empty: it writes to no path.
  virtual std::string destination() const { return {}; }
};

}  // namespace horon
