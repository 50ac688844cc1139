// The name of this machine, for messages and files.
#pragma once

#include <string>

namespace horon::core {

// As the kernel has it; "unknown-host" where it can't be told.
std::string host_name();

}  // namespace horon::core
