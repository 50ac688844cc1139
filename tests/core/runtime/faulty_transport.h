// A rank whose transport fails when the test says so.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "horon/tests/core/runtime/forwarding_transport.h"
#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core::test_world {

// Calls `fault` before each send and receive, and throws what it throws.
class FaultyTransport final : public ForwardingTransport {
 public:
  enum class Call : uint8_t { Send, Receive };
  using Fault = std::function<void(Call call, int to)>;
  FaultyTransport(std::unique_ptr<Transport> below, Fault fault)
      : ForwardingTransport(std::move(below)), fault_(std::move(fault)) {}

  void send(int to, SharedBytes message) override {
    fault_(Call::Send, to);
    ForwardingTransport::send(to, std::move(message));
  }
  std::optional<Message> receive() override {
    fault_(Call::Receive, -1);
    return ForwardingTransport::receive();
  }

 private:
  const Fault fault_;
};

// Only the transport of rank `guilty` has the fault.
inline Hooks transport_of(int guilty, FaultyTransport::Fault fault) {
  Hooks hooks;
  hooks.wrap_transport = [=](int rank, std::unique_ptr<Transport> below) {
    if (rank != guilty) return below;
    return std::unique_ptr<Transport>(new FaultyTransport(std::move(below), fault));
  };
  return hooks;
}

// The error of a submission, or the one that submit() throws since the job has ended.
inline std::string error_of_submit(Runtime& runtime, const std::string& name,
                                   uint32_t set = kWorldSet) {
  const auto x = std::make_shared<Tensor>(tensor({1}));
  Submission mine = in_set(set, name, *x);
  mine.keep_alive = x;
  try {
    return error_of(*runtime.submit(std::move(mine)));
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace horon::core::test_world
