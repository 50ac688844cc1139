#include "horon/core/transport/transport.h"

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::core {

void Transport::require_sendable(const SharedBytes& message) {
  if (message.size() <= kMessageBytesMax) return;
  throw Error(ErrorCode::Limit, concat("a control message of ", bytes_text(message.size()),
                                       " is longer than ", bytes_text(kMessageBytesMax)));
}

}  // namespace horon::core
