// Which files a folder of images lists, and headers that claim too much. Needs no session.
#include "horon/torch_bindings/data/image_folder.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>

#include "horon/tests/support/error_of.h"
#include "horon/torch_bindings/data/image_file.h"

namespace horon::image_folder_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class ImageFolders : public testing::Test {
 protected:
  void SetUp() override {
    if (!can_decode_images()) GTEST_SKIP() << "built without libjpeg and libpng";
    folder_ = fs::temp_directory_path() / ("horon_image_folder_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }
  void write(const fs::path& name, const std::string& bytes = "") const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  std::vector<std::string> listed(const char* name) const {
    const ImageFolder images(folder_ / name);
    std::vector<std::string> paths;
    for (size_t i = 0; i < images.size(); ++i) {
      paths.push_back(fs::path(images.path(i)).lexically_relative(folder_ / name));
    }
    return paths;
  }
  fs::path folder_;
};

TEST_F(ImageFolders, LinksToFoldersAreFollowed) {
  write("elsewhere/a.png");
  write("elsewhere/deep/b.png");
  write("all/cat/z.png");
  fs::create_directory_symlink(folder_ / "elsewhere", folder_ / "all/cat/more");
  fs::create_directory_symlink(folder_ / "elsewhere/deep", folder_ / "all/dog");
  fs::create_symlink(folder_ / "nowhere.png", folder_ / "all/cat/gone.png");
  EXPECT_THAT(listed("all"),
              ElementsAre("cat/more/a.png", "cat/more/deep/b.png", "cat/z.png", "dog/b.png"));
}

TEST_F(ImageFolders, TwoLinksToOneFolderAreBothFollowed) {
  write("elsewhere/a.png");
  write("all/cat/z.png");
  fs::create_directory_symlink(folder_ / "elsewhere", folder_ / "all/cat/one");
  fs::create_directory_symlink(folder_ / "elsewhere", folder_ / "all/cat/two");
  EXPECT_THAT(listed("all"), ElementsAre("cat/one/a.png", "cat/two/a.png", "cat/z.png"));
}

TEST_F(ImageFolders, LinksBackAreNotFollowed) {
  write("all/cat/one/a.png");
  write("all/cat/two/b.png");
  fs::create_directory_symlink(folder_ / "all/cat", folder_ / "all/cat/one/back");
  fs::create_directory_symlink("..", folder_ / "all/cat/two/up");
  fs::create_directory_symlink(".", folder_ / "all/cat/itself");
  EXPECT_THAT(listed("all"), ElementsAre("cat/one/a.png", "cat/two/b.png"));
}

TEST_F(ImageFolders, FoldersThatCanNotBeListedAreNamed) {
  write("all/cat/a.png");
  fs::create_symlink("loop", folder_ / "all/cat/loop");  // to itself
  EXPECT_THAT(error_of([&] { listed("all"); }),
              AllOf(StartsWith("invalid argument"), HasSubstr("loop: can't be listed: ")));
}

// libjpeg holds all coefficients of a progressive image, 5 GB here. The file also ends behind its
// header, but only a reader that lets libjpeg begin would see that.
TEST_F(ImageFolders, ExtentOfAProgressiveImageIsRefusedBeforeItIsAllocated) {
  const std::string extent = "\x75\x30";  // 30000
  std::string bytes = "\xff\xd8\xff\xc2" + std::string("\0\x11\x08", 3) + extent + extent;
  bytes += std::string("\x03\x01\x11\0\x02\x11\0\x03\x11\0", 10);               // three components
  bytes += "\xff\xda" + std::string("\0\x0c\x03\x01\0\x02\0\x03\0\0\0\0", 12);  // the first scan
  write("all/cat/a.jpg", bytes);
  EXPECT_THAT(error_of([&] { read_image(folder_ / "all/cat/a.jpg"); }),
              HasSubstr("is an image of 30000 x 30000 pixels; the limit is"));
}

}  // namespace
}  // namespace horon::image_folder_test
