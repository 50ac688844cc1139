// The version of Horon. All ranks of a job must have the same one.
#pragma once

#include <string_view>

namespace horon {

// "0.1.0", followed by "+" and the commit if the sources were a git checkout: "0.1.0+2a3d02d1f0".
std::string_view version();

}  // namespace horon
