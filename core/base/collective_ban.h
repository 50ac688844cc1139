// Stretches of a thread's work in which it must not begin a collective: what one rank does alone.
#pragma once

#include <string_view>

namespace horon::core {

// From now on this thread may not begin collectives, for this reason; null: it may. Returns what
// held before, so that scopes nest. The text lives as long as it holds.
const char* ban_collectives(const char* reason) noexcept;

// Throws Error(InvalidArgument), which names the call and the reason, if this thread may not. To be
// called before anything of the call is counted or sent: then the other ranks notice nothing, and
// the session goes on.
void refuse_if_banned(std::string_view call);

}  // namespace horon::core
