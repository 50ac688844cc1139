// The version of Horon. All ranks of a job must have the same one.
#pragma once

#include <string_view>

namespace horon {

// The version of these headers, with which a program is compiled. CMake reads it from this line.
inline constexpr std::string_view kHeaderVersion = "0.1.0";

// The version of the library: "0.1.0", followed by "+" and the commit if the sources were a git
// checkout: "0.1.0+2a3d02d1f0". In a build with tests, the commit is that of the last run of CMake.
std::string_view version();

// For init(): throws Error(Config) naming both versions if a program's headers are of another major
// or minor version than the library.
void require_headers_of_this_version(std::string_view headers);

}  // namespace horon
