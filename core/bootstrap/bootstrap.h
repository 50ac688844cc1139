// What the ranks of a job know of each other before anything else works: who there is, who shares
// this host, and an allgather of bytes to agree on the rest.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/bootstrap/topology.h"

namespace horon::core {

// One rank's view. Implementations: mpi_bootstrap.h, and in_process_bootstrap.h for ranks that are
// threads. Every call is collective and blocks until all ranks concerned have made it, so it
// belongs to the start of a job only. One thread at a time.
class Bootstrap {
 public:
  // The ranks of the whole job, or those that share this host.
  enum class Among : uint8_t { Job, Host };

  virtual ~Bootstrap() = default;
  virtual const Topology& topology() const = 0;
  // The bytes of each rank, in order of rank (or of local rank); lengths may differ. A rank that
  // does not take part has an empty string. Throws Error(Limit) on every rank if the bytes of all
  // ranks together are too many; Error(Stall) where a rank gives up waiting for others, and from
  // then on at once; Error(OperationFailed).
  virtual std::vector<std::string> allgather(Among among, std::string_view mine) const = 0;

 protected:
  Bootstrap() = default;
  Bootstrap(const Bootstrap&) = default;
  Bootstrap& operator=(const Bootstrap&) = default;
};

// An allgather of values whose bytes mean the same in every process. A rank that does not take part
// (see MembersBootstrap in ../ops/session) has a value of zeros.
template <class Value>
std::vector<Value> allgather_values(const Bootstrap& bootstrap, Bootstrap::Among among,
                                    const Value& mine) {
  static_assert(std::is_trivially_copyable_v<Value>);
  const std::string_view bytes(reinterpret_cast<const char*>(&mine), sizeof mine);
  std::vector<Value> all;
  for (const std::string& block : bootstrap.allgather(among, bytes)) {
    Value& value = all.emplace_back();
    if (block.empty()) continue;
    HORON_CHECK(block.size() == sizeof(Value), "all ranks send a value of one type");
    std::memcpy(&value, block.data(), sizeof(Value));
  }
  return all;
}

// Compares this text (the version, the knobs; lines) with rank 0's. If some rank's differs, every
// rank throws the same Error(Config): "version differs between ranks: rank 0 has '0.1', rank 3 has
// '0.2'", with the first line that is different and the lowest rank that has a difference.
void require_same(const Bootstrap& bootstrap, const std::string& what, const std::string& text);

// Each rank says how a step went that can fail on one rank alone: `fault`, or nothing. If any rank
// has a fault, every rank throws that of the lowest such rank. Its text names the ranks that have
// the same fault: "... (on rank 3)". If that is all ranks, none is named.
// Collective over the job. If the allgather fails, throws this rank's own fault, or else that
// error.
void agree(const Bootstrap& bootstrap, const std::optional<Error>& fault);

// Runs `step` on every rank, then agree()s on how it went: an exception of one rank is an Error on
// all of them. If `step` is itself collective, it must not throw before its last collective call,
// unless that call is an allgather() that fails.
void run_on_all(const Bootstrap& bootstrap, const std::function<void()>& step);

}  // namespace horon::core
