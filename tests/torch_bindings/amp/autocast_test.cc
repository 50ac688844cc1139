// The autocast scope: what it changes, and that it puts everything back.
#include "horon/torch_bindings/amp/autocast.h"

#include <stdexcept>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>

#include "horon/tests/support/error_of.h"

namespace horon::autocast_test {
namespace {

using amp::Autocast;
using test::error_of;
using testing::HasSubstr;

struct AutocastState {
  bool cpu, cuda, cache;
  at::ScalarType cpu_dtype, cuda_dtype;
  bool operator==(const AutocastState&) const = default;
};

AutocastState autocast_state() {
  return {at::autocast::is_autocast_enabled(at::kCPU), at::autocast::is_autocast_enabled(at::kCUDA),
          at::autocast::is_autocast_cache_enabled(), at::autocast::get_autocast_dtype(at::kCPU),
          at::autocast::get_autocast_dtype(at::kCUDA)};
}

TEST(Autocast, ScopesNestAndPutBackWhatTheyFound) {
  const AutocastState before = autocast_state();
  const at::Tensor x = at::ones({2, 3}), w = at::ones({4, 3});
  const auto type = [&] { return at::linear(x, w).scalar_type(); };
  {
    const Autocast outer(at::kCPU);
    EXPECT_EQ(type(), at::kBFloat16);
    {
      const Autocast off(at::kCPU, {.enabled = false});
      EXPECT_EQ(type(), at::kFloat);
      const Autocast half(at::kCPU, {.dtype = at::kHalf, .cache = false});
      EXPECT_EQ(type(), at::kHalf);
      const Autocast as_around(at::kCPU);
      EXPECT_EQ(type(), at::kHalf);
      EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
    }
    EXPECT_EQ(type(), at::kBFloat16);
    const AutocastState inside = autocast_state();
    try {
      const Autocast on_gpu(at::Device(at::kCUDA, 0), {.dtype = at::kBFloat16, .enabled = true});
      EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCUDA));
      EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCUDA), at::kBFloat16);
      throw std::runtime_error("passes");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(autocast_state(), inside);
  }
  EXPECT_EQ(autocast_state(), before);
  EXPECT_THAT(error_of([] { const Autocast on_meta(at::kMeta); }), HasSubstr("the device is meta"));
  EXPECT_THAT(error_of([] { Autocast(at::kCPU, {.dtype = at::kFloat}); }),
              HasSubstr("the dtype is Float"));
  EXPECT_EQ(autocast_state(), before);
}

TEST(Autocast, CastWeightsAreKeptUntilTheOutermostEnd) {
  const at::Tensor x = at::ones({1, 1}), w = at::ones({1, 1}).requires_grad_();
  const auto value = [&] { return at::linear(x, w).item<double>(); };
  {
    const Autocast outer(at::kCPU);
    {
      const Autocast inner(at::kCPU);
      EXPECT_EQ(value(), 1);
    }
    w.detach().fill_(2);
    EXPECT_EQ(value(), 1) << "the inner end has dropped what the outer scope keeps";
  }
  const Autocast scope(at::kCPU, {.cache = false});
  EXPECT_EQ(value(), 2) << "the outermost end has kept a weight";
  w.detach().fill_(3);
  EXPECT_EQ(value(), 3);
}

}  // namespace
}  // namespace horon::autocast_test
