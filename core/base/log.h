// One line per event on standard error, rank first: "horon [3] warning: ...". Whole lines, one
// write each.
#pragma once

#include <string>
#include <string_view>

namespace horon::core {

enum class LogLevel : unsigned char { Error, Warn, Info, Debug };

// Any thread. Before set_log() the rank is left out and the level is Info.
void set_log(int rank, LogLevel level);
// What set_log() was given last; -1: it was not called.
int log_rank();
LogLevel parse_log_level(const std::string& text);  // throws Error(Config)
bool log_enabled(LogLevel level);
void log(LogLevel level, std::string_view line);

}  // namespace horon::core
