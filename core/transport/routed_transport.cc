#include "horon/core/transport/routed_transport.h"

#include <utility>

#include "horon/core/base/error.h"

namespace horon::core {

RoutedTransport::RoutedTransport(std::unique_ptr<SharedMemoryTransport> local,
                                 std::unique_ptr<Transport> remote)
    : local_(std::move(local)), remote_(std::move(remote)) {
  HORON_CHECK(local_->rank() == remote_->rank() && local_->size() == remote_->size(),
              "both transports number the same ranks");
}

void RoutedTransport::send(int to, SharedBytes message) {
  if (local_->reaches(to)) {
    local_->send(to, std::move(message));
  } else {
    remote_->send(to, std::move(message));
  }
}

// Takes turns, so that a flood on one side does not silence the other.
std::optional<Transport::Message> RoutedTransport::receive() {
  Transport& first = remote_first_ ? *remote_ : *local_;
  Transport& second = remote_first_ ? *local_ : *remote_;
  remote_first_ = !remote_first_;
  std::optional<Message> message = first.receive();
  return message ? std::move(message) : second.receive();
}

bool RoutedTransport::flushed() {
  const bool local = local_->flushed();
  return remote_->flushed() && local;
}

}  // namespace horon::core
