// A file that is there whole or not at all.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace horon::core {

// `write` makes a file at the path that it is given, beside `path`. That file is brought to the
// disk and takes the place of `path` by a rename, so that a reader, a crash or a full disk never
// leaves half of it; the rename is brought to the disk too, where the file system can do that. If
// anything fails, the old file stays and the new one is removed; a process that is killed meanwhile
// leaves `path`.tmp and a number behind. A link stays a link: what it points to is replaced. What
// is no file (/dev/null, a pipe) is written to as it is. Throws Error(OperationFailed) that names
// the path.
void replace_file(const std::string& path,
                  const std::function<void(const std::string& temporary)>& write);
void replace_file(const std::string& path, std::string_view content);

// Checks before long work that replace_file() can make its file beside `path`: makes one and
// removes it again. Throws as replace_file() does, also if `path` is a folder.
void require_replaceable(const std::string& path);

// The name of a new, empty file beside `path`, so that it can take its place by a rename. Nobody
// else has it. Throws Error(OperationFailed), which says only why not.
std::string make_file_beside(const std::string& path);

}  // namespace horon::core
