// TensorBoard's event files: TFRecords that hold protobuf messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "horon/torch_bindings/logging/append_file.h"
#include "horon/torch_bindings/logging/log_sink.h"

namespace horon {
namespace torch_detail {

// CRC-32C (Castagnoli), and the form in which records have it.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

// Length (8 bytes), masked CRC of the length, content, masked CRC of the content; little-endian.
std::string tf_record(std::string_view content);
// The first record of a file: {wall_time, file_version "brain.Event:2"}.
std::string version_event(double time);
// {wall_time, step, summary {value {tag, simple_value}...}}; values are float32 there.
std::string scalars_event(const LogRecord& record);

}  // namespace torch_detail

// Scalars for TensorBoard: a new file events.out.tfevents.SECONDS.HOST.PID.N in the folder, which
// is made if need be. Each run writes a file of its own; TensorBoard shows those of a folder as
// one. Each record is in the file when write() returns.
class TensorBoardSink : public LogSink {
 public:
  explicit TensorBoardSink(std::string folder) : folder_(std::move(folder)) {}
  void write(const LogRecord& record) override;
  std::string destination() const override { return folder_; }
  // Empty before the first record.
  const std::string& path() const { return path_; }

 private:
  const std::string folder_;
  std::string path_;
  torch_detail::AppendFile file_;
};

}  // namespace horon
