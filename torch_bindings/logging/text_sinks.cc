#include "horon/torch_bindings/logging/text_sinks.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include "horon/core/base/error.h"
#include "horon/core/base/json.h"
#include "horon/core/base/parse_number.h"
#include "horon/core/base/replace_file.h"
#include "horon/core/base/text.h"

namespace horon {
namespace {

using core::concat;
using core::number_text;

std::string short_number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.5g", value);
  return text.data();
}

std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char letter : text) quoted.append(letter == '"' ? 2 : 1, letter);
  return quoted + '"';
}

std::vector<std::string> csv_cells(const std::string& line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool twice = quoted && line[i] == '"' && i + 1 < line.size() && line[i + 1] == '"';
    if (line[i] == '"' && !twice) {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      cells.emplace_back();
    } else {
      i += twice ? 1 : 0;
      cells.back() += line[i];
    }
  }
  return cells;
}

// Keeps the header on one line, for its readers and for widen().
std::string column_of(std::string name) {
  std::replace(name.begin(), name.end(), '\n', ' ');
  return name;
}

std::vector<std::string> with_columns_of(const LogRecord& record,
                                         std::vector<std::string> columns) {
  for (const auto& [name, value] : record.values) {
    std::string column = column_of(name);
    if (std::find(columns.begin() + 2, columns.end(), column) == columns.end()) {
      columns.push_back(std::move(column));
    }
  }
  return columns;
}

std::string csv_line(const std::vector<std::string>& cells) {
  std::string line;
  for (const std::string& cell : cells) line += (line.empty() ? "" : ",") + csv_cell(cell);
  return line + '\n';
}

[[noreturn]] void refuse_to_go_on(const std::string& path, const char* why) {
  throw Error(ErrorCode::OperationFailed, concat("can't append to ", path, ": ", why));
}

// A pipe, a terminal: what is in it can't be read again.
bool is_stream(const std::string& path) {
  std::error_code unknown;
  const std::filesystem::file_type type = std::filesystem::status(path, unknown).type();
  return type == std::filesystem::file_type::fifo || type == std::filesystem::file_type::character;
}

bool holds_something(const std::string& path) {
  std::error_code error;  // where the size can't be told, it is the largest number
  return std::filesystem::is_regular_file(path, error) &&
         std::filesystem::file_size(path, error) > 0;
}

std::string prometheus_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return number_text(value);
}

std::string prometheus_name(const std::string& name) {
  std::string allowed = "horon_";
  for (const char letter : name) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool good = byte < 0x80 && std::isalnum(byte) != 0;
    allowed += good ? letter : '_';
  }
  return allowed;
}

std::string prometheus_label(const std::string& text) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '\\' || letter == '"') escaped += '\\';
    escaped += letter == '\n' ? ' ' : letter;
  }
  return escaped;
}

}  // namespace

void ConsoleSink::write(const LogRecord& record) {
  std::string line = concat("step ", record.step);
  for (const auto& [name, value] : record.values) {
    line += concat("  ", name, " ", short_number(value));
  }
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), out_);
  std::fflush(out_);
}

void JsonlSink::write(const LogRecord& record) {
  if (!file_.is_open()) {
    torch_detail::AppendFile file(path_, options_.append);
    file.end_line();
    file_ = std::move(file);
  }
  std::string line = concat("{\"step\": ", record.step, ", \"time\": ", number_text(record.time));
  for (const auto& [name, value] : record.values) {
    line += concat(", ", core::json_string(name), ": ",
                   std::isfinite(value) ? number_text(value) : "null");
  }
  file_.append(line + "}\n");
}

void CsvSink::open(const LogRecord& record) {
  std::vector<std::string> columns = {"step", "time"};
  const bool goes_on = options_.append && holds_something(path_);
  if (goes_on) {
    std::ifstream before(path_);
    std::string header;
    if (!std::getline(before, header)) refuse_to_go_on(path_, "it can't be read");
    columns = csv_cells(header);
    if (columns.size() < 2 || columns[0] != "step" || columns[1] != "time") {
      refuse_to_go_on(path_, "its first line is not the header of a log");
    }
  } else {
    columns = with_columns_of(record, std::move(columns));
  }
  torch_detail::AppendFile file(path_, goes_on);
  goes_on ? file.end_line() : file.append(csv_line(columns));
  file_ = std::move(file);
  columns_ = std::move(columns);
}

void CsvSink::widen(const LogRecord& record) {
  std::vector<std::string> columns = with_columns_of(record, columns_);
  if (columns.size() == columns_.size()) return;
  if (is_stream(path_)) {
    file_.append(csv_line(columns));
    columns_ = std::move(columns);
    return;
  }
  std::ifstream old(path_);
  std::string content = csv_line(columns), line;
  std::getline(old, line);
  while (std::getline(old, line)) {
    content += concat(line, std::string(columns.size() - columns_.size(), ','), "\n");
  }
  const bool is_read = old.is_open() ? !old.bad() : !holds_something(path_);
  if (!is_read) refuse_to_go_on(path_, "it can't be read");
  core::replace_file(path_, content);
  // From here on columns_ are those of the file, whatever fails later.
  columns_ = std::move(columns);
  file_ = torch_detail::AppendFile();
}

void CsvSink::write(const LogRecord& record) {
  if (columns_.empty()) open(record);
  widen(record);
  if (!file_.is_open()) file_ = torch_detail::AppendFile(path_, true);
  std::vector<std::string> cells(columns_.size());
  cells[0] = std::to_string(record.step);
  cells[1] = number_text(record.time);
  for (const auto& [name, value] : record.values) {
    const auto column = std::find(columns_.begin() + 2, columns_.end(), column_of(name));
    cells[static_cast<size_t>(column - columns_.begin())] = number_text(value);
  }
  file_.append(csv_line(cells));
}

void PrometheusSink::write(const LogRecord& record) {
  for (const auto& value : record.values) {
    const auto known = std::find_if(latest_.begin(), latest_.end(), [&](const auto& latest) {
      return latest.first == value.first;
    });
    if (known == latest_.end()) {
      latest_.emplace_back(value);
    } else {
      known->second = value.second;
    }
  }
  // All series of one metric must stand together, and several logged names may become the same name
  // of a metric.
  std::map<std::string, std::string> series;
  for (const auto& [name, value] : latest_) {
    const std::string metric = prometheus_name(name);
    series[metric] +=
        concat(metric, "{name=\"", prometheus_label(name), "\"} ", prometheus_number(value), "\n");
  }
  series["horon_step"] += concat("horon_step ", record.step, "\n");
  series["horon_time_seconds"] += concat("horon_time_seconds ", number_text(record.time), "\n");
  std::string content;
  for (const auto& [metric, lines] : series)
    content += concat("# TYPE ", metric, " gauge\n", lines);
  core::replace_file(path_, content);
}

}  // namespace horon
