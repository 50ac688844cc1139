#include "horon/core/base/version.h"

namespace horon {

std::string_view version() { return HORON_VERSION; }

}  // namespace horon
