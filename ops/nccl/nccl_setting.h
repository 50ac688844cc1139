// NCCL's own settings, as NCCL will find them: in the environment, or else in its files.
#pragma once

#include <string>

namespace horon::ops {

struct NcclSetting {
  std::string value;
  std::string file;  // empty: the environment has it, or nothing has
};

// NCCL copies settings into the environment from the file that NCCL_CONF_FILE names, or else from
// ~/.nccl.conf, and then from /etc/nccl.conf: lines as NAME=VALUE. It overwrites nothing. It does
// so when it makes its first communicator, so before that the environment lacks them.
NcclSetting find_nccl_setting(const std::string& name);

}  // namespace horon::ops
