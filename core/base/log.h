// The log: one line for each event on standard error, with the rank: "horon [3] warning: ...". A
// line is written by one call, so lines of several ranks do not mix.
#pragma once

#include <string>
#include <string_view>

namespace horon::core {

enum class LogLevel : unsigned char { Error, Warn, Info, Debug };

// Any thread. Before set_log() the rank is left out and the level is Info.
void set_log(int rank, LogLevel level);
// The rank that set_log() was given last; -1 if it was not called.
int log_rank();
LogLevel parse_log_level(const std::string& text);  // throws Error(Config)
bool log_enabled(LogLevel level);
void log(LogLevel level, std::string_view line);

}  // namespace horon::core
