#include "horon/bench/gloo_place.h"

#include <set>

namespace horon::bench {

std::string gloo_refusal(CollectiveKind kind) {
  return kind == CollectiveKind::Reducescatter ? "it has no reducescatter" : "";
}

GlooPlace find_gloo_place(CollectiveKind kind, const std::vector<std::string>& hosts,
                          const std::string& interface) {
  if (const std::string refusal = gloo_refusal(kind); !refusal.empty()) return {"", refusal};
  if (hosts.size() == 1) return {"", "it has nothing to do for one rank"};
  if (!interface.empty()) return {interface, ""};
  const bool one_host = std::set<std::string>(hosts.begin(), hosts.end()).size() == 1;
  if (!one_host) return {"", "there are several hosts; give --gloo-interface"};
  return {"lo", ""};
}

}  // namespace horon::bench
