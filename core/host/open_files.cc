#include "horon/core/host/open_files.h"

#include <algorithm>
#include <sys/resource.h>

#include "horon/core/base/text.h"

namespace horon::core {

void allow_more_open_files() noexcept {
  constexpr rlim_t wanted = 65536;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::string too_many_open_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return concat("this process has reached its limit of ", limit.rlim_cur,
                " open files; each large piece of shared memory, such as a bucket of gradients, "
                "takes one: raise the limit (ulimit -n), or make fewer and larger buckets "
                "(HORON_BUCKET_BYTES)");
}

}  // namespace horon::core
