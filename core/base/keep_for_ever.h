// For memory that somebody may still write after this process has given up waiting: MPI, a device,
// another process.
#pragma once

#include <memory>

namespace horon::core {

// Never released. The memory stays reachable, so that leak checkers do not report it. Any thread.
void keep_for_ever(std::shared_ptr<void> owner) noexcept;

}  // namespace horon::core
