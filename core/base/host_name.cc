#include "horon/core/base/host_name.h"

#include <array>
#include <unistd.h>

namespace horon::core {

std::string host_name() {
  std::array<char, 256> name{};  // one byte more than is written: gethostname() may cut the name
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "unknown-host";
  return name.data();
}

}  // namespace horon::core
