// Stretches of a thread's work in which it must not begin a collective: what one rank does alone.
#pragma once

#include <string_view>

namespace horon::core {

// Forbids this thread to begin collectives, for `reason`; null allows it again. Returns the reason
// that held before, so that scopes nest. The text must live as long as the ban.
const char* ban_collectives(const char* reason) noexcept;

// Throws Error(InvalidArgument), which names the call and the reason, if this thread may not begin
// collectives. Call it before anything is counted or sent: then the other ranks notice nothing, and
// the session goes on.
void refuse_if_banned(std::string_view call);

}  // namespace horon::core
