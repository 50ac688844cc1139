#include "horon/core/base/collective_ban.h"

#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::core {
namespace {

thread_local const char* ban_reason = nullptr;

}  // namespace

const char* ban_collectives(const char* reason) noexcept {
  return std::exchange(ban_reason, reason);
}

void refuse_if_banned(std::string_view call) {
  if (ban_reason == nullptr) return;
  throw Error(ErrorCode::InvalidArgument, concat("\"", call, "\": ", ban_reason));
}

}  // namespace horon::core
