// Tensors from one rank to another.
#include "horon/torch_bindings/collectives/point_to_point.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/collectives/collective_values.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/guards/rank_zero.h"

namespace horon::point_to_point_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::error_of;
using testing_support::expect_equal;
using testing_support::kTensorTypes;
using testing_support::values_of;

int next() { return (rank() + 1) % size(); }
int previous() { return (rank() + size() - 1) % size(); }

// All ranks send around the ring at once: no rank may wait for a receive before it has made its
// own.
TEST(PointToPoint, EveryTypeAndShapeAroundTheRing) {
  for (const at::ScalarType type : kTensorTypes) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{}, {0}, {3}, {4, 0, 2}, {70, 31}}) {
      SCOPED_TRACE(testing::Message() << type << " " << at::IntArrayRef(shape));
      const at::Tensor mine = values_of(shape, type, rank());
      const Handle sent = send_async(mine, next());
      const at::Tensor got = at::zeros_like(mine);
      const at::Tensor given_back = recv(got, previous());
      EXPECT_EQ(given_back.data_ptr(), got.data_ptr());
      expect_equal(got, values_of(shape, type, previous()));
      expect_equal(sent.wait(), values_of(shape, type, rank()));
    }
  }
}

TEST(PointToPoint, ALongTensorArrivesWhole) {
  const at::Tensor mine = at::arange(3'000'017, at::kLong) * (rank() + 1);
  const at::Tensor got = at::zeros_like(mine);
  const Handle received = recv_async(got, previous());
  send(mine, next());
  expect_equal(received.wait(), at::arange(3'000'017, at::kLong) * (previous() + 1));
}

TEST(PointToPoint, StridesOfBothSidesAreTheirOwn) {
  const at::Tensor mine = values_of({6, 5}, at::kFloat, rank()).t();
  const Handle sent = send_async(mine, next());
  const at::Tensor got = at::zeros({5, 12}).slice(1, 0, 12, 2);
  recv(got, previous());
  expect_equal(got.contiguous(), values_of({6, 5}, at::kFloat, previous()).t().contiguous());
  (void)sent.wait();
}

TEST(PointToPoint, MessagesOfATagKeepTheirOrderAndTagsAreApart) {
  constexpr int kMessages = 20;
  std::vector<Handle> handles;
  for (int tag = 0; tag < 3; ++tag) {
    for (int i = 0; i < kMessages; ++i) {
      handles.push_back(send_async(at::full({2}, 100 * tag + i), next(), {.tag = tag}));
    }
  }
  for (int tag = 2; tag >= 0; --tag) {
    for (int i = 0; i < kMessages; ++i) {
      const at::Tensor got = at::zeros({2}, at::kLong);
      recv(got, previous(), {.tag = tag});
      EXPECT_EQ(got[1].item<int64_t>(), 100 * tag + i);
    }
  }
  for (const Handle& handle : handles) (void)handle.wait();
}

TEST(PointToPoint, ProcessSetsCountApart) {
  const ProcessSet all = split_process_set(0);
  const Handle of_set = send_async(at::full({1}, 7), next(), {.process_set = all});
  const Handle of_world = send_async(at::full({1}, 8), next());
  const at::Tensor first = at::zeros({1}, at::kLong), second = at::zeros({1}, at::kLong);
  recv(second, previous());
  recv(first, previous(), {.process_set = all});
  EXPECT_EQ(first.item<int64_t>(), 7);
  EXPECT_EQ(second.item<int64_t>(), 8);
  (void)of_set.wait();
  (void)of_world.wait();
  remove_process_set(all);
}

TEST(PointToPoint, DifferentShapesAreAMismatchOfBothAndTheNextMessageWorks) {
  if (rank() < 2) {
    const at::Tensor x = at::ones({rank() == 0 ? 3 : 4});
    const auto call = [&](const at::Tensor& tensor) {
      rank() == 0 ? send(tensor, 1) : (void)recv(tensor, 0);
    };
    EXPECT_THAT(error_of([&] { call(x); }),
                AllOf(HasSubstr("send 0 to 1, tag 0"), HasSubstr("[3] on rank 0, [4] on rank 1")));
    const at::Tensor wrong = at::ones({3}, rank() == 0 ? at::kFloat : at::kInt);
    EXPECT_THAT(error_of([&] { call(wrong); }),
                HasSubstr("disagree about the dtype: float32 on rank 0, int32 on rank 1"));
    const at::Tensor right = at::full({3}, 5 * (1 - rank()));
    call(right);
    EXPECT_EQ(right.sum().item<int64_t>(), 15);
  }
  barrier();
}

TEST(PointToPoint, OneMoreThanThereMayBeIsRefusedInTheCall) {
  constexpr int kMost = 1024;
  const PointToPointOptions options = {.tag = 9};
  const auto number = [](int i) { return at::full({1}, i, at::kInt); };
  if (rank() == 0) {
    std::vector<Handle> sent;
    for (int i = 0; i < kMost; ++i) sent.push_back(send_async(number(i), 1, options));
    EXPECT_THAT(error_of([&] { (void)send_async(number(-1), 1, options); }),
                AllOf(HasSubstr("1024 messages from rank 0 to rank 1 with tag 9"),
                      HasSubstr("wait for the oldest")));
    barrier();
    for (const Handle& each : sent) (void)each.wait();
    send(number(kMost), 1, options);
  } else {
    barrier();
  }
  if (rank() == 1) {
    for (int i = 0; i <= kMost; ++i) {
      const at::Tensor got = number(-2);
      ASSERT_EQ(recv(got, 0, options).item<int>(), i);
    }
  }
  barrier();
}

// A blocking call counts as one that is under way. If its thread is late, it is one too many
// itself.
TEST(PointToPoint, ABlockingCallIsUnderWayToo) {
  constexpr int kMost = 1024;
  const PointToPointOptions options = {.tag = 10};
  if (rank() == 0) {
    std::string error_of_thread;
    std::jthread waiting(
        [&] { error_of_thread = error_of([&] { send(at::ones({1}), 1, options); }); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::vector<Handle> sent;
    while (sent.size() + 1 < kMost) sent.push_back(send_async(at::ones({1}), 1, options));
    const std::string error =
        error_of([&] { sent.push_back(send_async(at::ones({1}), 1, options)); });
    if (error == "no error") waiting.join();  // refused: 1,024 are under way without it
    barrier();
    for (const Handle& each : sent) (void)each.wait();
    if (waiting.joinable()) waiting.join();
    EXPECT_THAT(error + error_of_thread,
                HasSubstr("1024 messages from rank 0 to rank 1 with tag 10"));
    EXPECT_NE(error == "no error", error_of_thread == "no error");
  } else {
    barrier();
  }
  if (rank() == 1) {
    for (int i = 0; i < kMost; ++i) (void)recv(at::zeros({1}), 0, options);
  }
  barrier();
}

TEST(PointToPoint, ASetThatThisRankHasLeftHasNoMessages) {
  if (rank() < 2) {
    const ProcessSet pair = add_process_set_among({0, 1}, 11);
    leave_process_set(pair);
    EXPECT_THAT(error_of([&] { send(at::ones({1}), 1 - rank(), {.process_set = pair}); }),
                AllOf(HasSubstr("process set 11"), HasSubstr("has been removed")));
  }
  barrier();
}

TEST(PointToPoint, WrongCallsAreRefused) {
  const at::Tensor x = at::ones({2});
  EXPECT_THAT(error_of([&] { send(x, rank()); }), HasSubstr("need two different ranks"));
  EXPECT_THAT(error_of([&] { send(x, size()); }), HasSubstr("is not in the process set"));
  EXPECT_THAT(error_of([&] { (void)recv_async(x, -1); }), HasSubstr("is not in the process set"));
  const ProcessSet alone = add_process_set_among({rank()}, 1);
  EXPECT_THAT(error_of([&] { send(x, next(), {.process_set = alone}); }),
              HasSubstr("is not in the process set, whose ranks are"));
  rank_zero_only([&] {
    if (rank() == 0) {
      EXPECT_THAT(error_of([&] { send(x, next()); }), HasSubstr("send or recv"));
    }
  });
  if (rank() == 0) {  // what is refused here fails there
    EXPECT_THAT(error_of([&] { send(at::Tensor(), 1); }), HasSubstr("is undefined"));
  } else if (rank() == 1) {
    EXPECT_THAT(error_of([&] { recv(x, 0); }), HasSubstr("refused on rank 0"));
  }
  barrier();
}

}  // namespace
}  // namespace horon::point_to_point_test
