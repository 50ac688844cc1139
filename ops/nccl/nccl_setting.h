// NCCL's own settings, as NCCL will find them: in the environment, or else in its files.
#pragma once

#include <string>

namespace horon::ops {

struct NcclSetting {
  std::string value;
  std::string file;  // empty: the environment has it, or nothing has
};

// NCCL copies into the environment what stands in the file that NCCL_CONF_FILE names, or without
// one in ~/.nccl.conf, and then in /etc/nccl.conf: lines as NAME=VALUE. What is set already stays.
// It does so when it makes its first communicator, so before that the environment tells too little.
NcclSetting find_nccl_setting(const std::string& name);

}  // namespace horon::ops
