#include "horon/core/base/current_error.h"

#include <new>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

template <class Thrown>
Error handled(const Thrown& thrown, ErrorCode other) {
  try {
    throw thrown;
  } catch (...) {
    return current_error(other);
  }
}

TEST(CurrentError, AnErrorStaysAsItIs) {
  const Error error = handled(Error(ErrorCode::Mismatch, "two\nlines"), ErrorCode::Internal);
  EXPECT_EQ(error.code(), ErrorCode::Mismatch);
  EXPECT_STREQ(error.what(), "two\nlines");
}

TEST(CurrentError, AnotherExceptionBecomesOneLine) {
  const Error error = handled(std::runtime_error("why\nand where: f()"), ErrorCode::Internal);
  EXPECT_EQ(error.code(), ErrorCode::Internal);
  EXPECT_STREQ(error.what(), "why");
}

TEST(CurrentError, WantOfMemoryIsALimit) {
  EXPECT_EQ(handled(std::bad_alloc(), ErrorCode::Internal).code(), ErrorCode::Limit);
}

TEST(CurrentError, AnyTypeCanBeThrown) {
  const Error error = handled(42, ErrorCode::OperationFailed);
  EXPECT_STREQ(error.what(), "an exception that is no std::exception");
}

}  // namespace
}  // namespace horon::core
