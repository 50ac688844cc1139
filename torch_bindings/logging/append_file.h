// A file that grows by whole pieces.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace horon::torch_detail {

// Moves only. Opened and written with system calls, so a piece is in the file, whole, when append()
// returns. What a full disk has cut off is taken out again, so that the file stays one of whole
// pieces.
class AppendFile {
 public:
  AppendFile() = default;
  // `keep`: what is there stays, and the file goes on behind it; else it is emptied. Throws
  // Error(OperationFailed) that names the file, as append() does.
  AppendFile(const std::string& path, bool keep);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  bool is_open() const { return file_ >= 0; }
  void append(std::string_view piece);
  // Ends the last line that is there, if it has no end: that of a program that was killed. For
  // files of lines.
  void end_line();

 private:
  [[noreturn]] void fail() const;
  void take_back(size_t bytes) const;

  std::string path_;
  int file_ = -1;
};

}  // namespace horon::torch_detail
