#include "horon/core/transport/in_process_transport.h"

#include <deque>
#include <mutex>
#include <span>
#include <utility>

#include "horon/core/base/error.h"

namespace horon::core {

struct InProcessTransport::Mailbox {
  std::mutex mutex;
  struct Sent {
    int from = 0;
    SharedBytes bytes;
  };
  std::deque<Sent> messages;
  Doorbell doorbell;
};

std::vector<std::unique_ptr<Transport>> InProcessTransport::make_world(int size,
                                                                       const WaitPolicy& policy) {
  HORON_CHECK(size >= 1, "a world has at least one rank");
  const auto world = std::make_shared<World>(static_cast<size_t>(size));
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) {
    transports.push_back(std::unique_ptr<Transport>(new InProcessTransport(rank, world, policy)));
  }
  return transports;
}

InProcessTransport::InProcessTransport(int rank, std::shared_ptr<World> world,
                                       const WaitPolicy& policy)
    : rank_(rank), world_(std::move(world)), policy_(policy) {}

InProcessTransport::Mailbox& InProcessTransport::mailbox(int rank) const {
  return (*world_)[static_cast<size_t>(rank)];
}

int InProcessTransport::size() const { return static_cast<int>(world_->size()); }

void InProcessTransport::send(int to, SharedBytes message) {
  HORON_CHECK(to >= 0 && to < size() && to != rank_, "a message goes to another rank");
  require_sendable(message);
  Mailbox& box = mailbox(to);
  {
    const std::lock_guard lock(box.mutex);
    box.messages.push_back({rank_, std::move(message)});
  }
  box.doorbell.ring();
}

std::optional<Transport::Message> InProcessTransport::receive() {
  Mailbox& box = mailbox(rank_);
  const std::lock_guard lock(box.mutex);
  if (box.messages.empty()) return std::nullopt;
  // A copy, since other ranks may receive the same payload.
  const std::span<const std::byte> sent = box.messages.front().bytes;
  Message message = {box.messages.front().from, Bytes(sent.begin(), sent.end())};
  box.messages.pop_front();
  return message;
}

void InProcessTransport::wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) {
  Mailbox& box = mailbox(rank_);
  {
    const std::lock_guard lock(box.mutex);
    if (!box.messages.empty()) return;
  }
  box.doorbell.wait(timeout, policy);
}

Doorbell& InProcessTransport::doorbell() noexcept { return mailbox(rank_).doorbell; }

}  // namespace horon::core
