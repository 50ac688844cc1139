// What is wrong with one call on this rank alone, before anybody else hears of it.
#pragma once

#include <string>

#include "horon/core/runtime/submission.h"

namespace horon::core {

// One sentence that names the tensor, the value and the cure; empty if the submission is fine.
std::string find_fault(const Submission& submission, int world_size);

}  // namespace horon::core
