#include "horon/core/base/first_fault.h"

#include <algorithm>

#include "horon/core/base/text.h"

namespace horon::core {

std::string fault_bytes(const std::optional<Error>& fault) {
  // One byte for the code, and the text.
  return fault ? concat(static_cast<char>(fault->code()), fault->what()) : std::string();
}

std::optional<FirstFault> first_fault(std::span<const std::string> said) {
  const auto first =
      std::find_if(said.begin(), said.end(), [](const std::string& one) { return !one.empty(); });
  if (first == said.end()) return std::nullopt;
  FirstFault fault{Error(static_cast<ErrorCode>(first->front()), first->substr(1)), {}};
  for (size_t member = 0; member < said.size(); ++member) {
    if (said[member] == *first) fault.members.push_back(static_cast<int>(member));
  }
  return fault;
}

}  // namespace horon::core
