// Whether Gloo can be timed, and where its ranks listen: a pure function of facts that all ranks
// share, for builds with Gloo and without it.
#pragma once

#include <string>
#include <vector>

#include "horon/core/base/entry_spec.h"

namespace horon::bench {

// Why Gloo can't run this kind; empty if it can.
std::string gloo_refusal(CollectiveKind kind);

struct GlooPlace {
  std::string interface;    // of the network
  std::string unavailable;  // why there is none; empty if there is
};
// `hosts` has the host name of each rank. `interface` is the one that the user asks for. If it is
// empty, "lo" is taken if all ranks are on one host. On several hosts the user must name one: the
// address of a host's own name, which Gloo would take, is often one that only this host can reach.
GlooPlace find_gloo_place(CollectiveKind kind, const std::vector<std::string>& hosts,
                          const std::string& interface);

}  // namespace horon::bench
