#include "libraries.h"
#include <horon/ops/session/session.h>

namespace first {

void init() { horon::init_session(); }
int rank() { return horon::rank(); }

}  // namespace first
