// The bootstrap of some ranks of a job that runs: what the members of a process set tell each other
// while they make it without the other ranks.
//
// It sends messages between pairs of ranks (core/runtime/pair_sets.h): from each member to the
// lowest one, and back from there. So a member that does not come is reported as a stall, by its
// rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "horon/core/bootstrap/bootstrap.h"
#include "horon/core/runtime/runtime.h"

namespace horon::ops {

class MembersBootstrap final : public core::Bootstrap {
 public:
  // `members`: ascending, with this rank. `name` of the messages: the same on all members, and not
  // used by another call at the same time. `what`: the set, with its number and its ranks. The
  // members compare it, and a call throws Error(Mismatch) where it differs. The runtime must
  // outlive this.
  MembersBootstrap(core::Runtime& runtime, std::vector<int> members, std::string name,
                   std::string what);

  // Of the whole job.
  const core::Topology& topology() const override { return runtime_.topology(); }
  // Collective over the members. The blocks of the other ranks are empty. Throws Error: if one of
  // the messages fails, on all members.
  std::vector<std::string> allgather(Among among, std::string_view mine) const override;

 private:
  std::string name_of(int from, int to, bool length) const;
  // Waits for a message.
  void finish(const std::shared_ptr<core::HandleState>& message) const;
  // The stages of the lowest member, in their order. The others do the same, message by message.
  enum class Stage : uint8_t { LengthUp, BytesUp, LengthDown, BytesDown };
  using Blocks = std::vector<std::shared_ptr<std::string>>;  // by member
  void with_each(Stage stage, const Blocks& blocks) const;
  std::string gather(std::string_view mine) const;
  std::string exchange(std::string_view mine) const;
  void send(int to, std::string_view bytes) const;
  std::string receive(int from) const;

  core::Runtime& runtime_;
  const std::vector<int> members_;
  const std::string name_;
  const std::string what_;
};

}  // namespace horon::ops
