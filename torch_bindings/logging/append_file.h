// A file that grows by whole pieces.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace horon::torch_detail {

// Moves only. Opened and written with system calls, so a piece is in the file, whole, when append()
// returns. A piece that a full disk has cut off is removed again, so that the file holds whole
// pieces only.
class AppendFile {
 public:
  AppendFile() = default;
  // `keep`: pieces are appended to what is there; else the file is emptied. Throws
  // Error(OperationFailed) that names the file, as append() does.
  AppendFile(const std::string& path, bool keep);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&& other) noexcept;

  bool is_open() const { return file_ >= 0; }
  void append(std::string_view piece);
  // Ends the file's last line if it has no end, as a program that was killed leaves it. For files
  // of lines.
  void end_line();

 private:
  [[noreturn]] void fail() const;
  void take_back(size_t bytes) const;

  std::string path_;
  int file_ = -1;
};

}  // namespace horon::torch_detail
