#include "libraries.h"
#include <horon/ops/session/session.h>

namespace second {

void init() { horon::init_session(); }
int rank() { return horon::rank(); }
void make_wrong_process_set() { horon::add_process_set({0, 0}); }
void shutdown() { horon::shutdown(); }

}  // namespace second
