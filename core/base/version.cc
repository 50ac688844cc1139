#include "horon/core/base/version.h"

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon {
namespace {

// "0.1" of "0.1.0+2a3d02d1f0": patch versions do not change what headers declare.
std::string_view major_and_minor(std::string_view version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

}  // namespace

std::string_view version() { return HORON_VERSION; }

void require_headers_of_this_version(std::string_view headers) {
  if (major_and_minor(headers) == major_and_minor(version())) return;
  throw Error(ErrorCode::Config,
              core::concat("this program was compiled with the headers of Horon ", headers,
                           ", and runs with the library of Horon ", version(),
                           ". Compile all of it with the headers that were installed with the "
                           "library"));
}

}  // namespace horon
