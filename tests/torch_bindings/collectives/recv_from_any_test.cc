// Messages that are received from any rank.
#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/collectives/collective_values.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/point_to_point.h"

namespace horon::recv_from_any_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::error_of;
using testing_support::expect_equal;
using testing_support::kTensorTypes;
using testing_support::values_of;

int next() { return (rank() + 1) % size(); }

// Sends to all other ranks. Calls `get` once for each of them: it receives, and returns the source.
template <class Get>
void with_messages_of_all(const at::Tensor& mine, const PointToPointOptions& options,
                          const Get& get) {
  std::vector<Handle> sent;
  for (int to = 0; to < size(); ++to) {
    if (to != rank()) sent.push_back(send_async(mine, to, options));
  }
  std::map<int, int> times;
  for (int i = 0; i + 1 < size(); ++i) ++times[get()];
  EXPECT_EQ(times.size() + 1, static_cast<size_t>(size()));  // each once
  EXPECT_FALSE(times.contains(rank()));
  for (const Handle& each : sent) (void)each.wait();
  barrier();  // or another rank's next round might come into this one
}

TEST(RecvFromAny, EveryTypeFromEveryRank) {
  for (const at::ScalarType type : kTensorTypes) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {0}, {5, 3}}) {
      SCOPED_TRACE(testing::Message() << type << " " << at::IntArrayRef(shape));
      const at::Tensor mine = values_of(shape, type, rank());
      with_messages_of_all(mine, {.tag = 1}, [&] {
        const at::Tensor got = at::zeros_like(mine);
        const ReceiveHandle handle = recv_async(got, kAnySource, {.tag = 1});
        EXPECT_EQ(handle.wait().data_ptr(), got.data_ptr());
        expect_equal(got, values_of(shape, type, handle.source()));
        return handle.source();
      });
    }
  }
}

TEST(RecvFromAny, StridesLongTensorsAndTheCallThatWaits) {
  const at::Tensor mine = at::full({300, 1000}, rank(), at::kInt);
  with_messages_of_all(mine, {}, [&] {
    const at::Tensor got = at::zeros({1000, 600}, at::kInt).t().slice(0, 0, 600, 2);
    EXPECT_EQ(recv(got, kAnySource).data_ptr(), got.data_ptr());
    const int source = got[0][0].item<int>();
    EXPECT_EQ(got.sum().item<int64_t>(), 300'000 * source);
    return source;
  });
}

// More messages than there are numbers; some are sent before the receive is posted, some after.
TEST(RecvFromAny, MoreThanThereAreNamesInTheirOrder) {
  constexpr int kMessages = 1'100;
  const PointToPointOptions options = {.tag = 2};
  if (rank() == 0) {
    std::map<int, int> latest;
    for (int i = 0; i < kMessages * (size() - 1); ++i) {
      const at::Tensor got = at::zeros({1}, at::kInt);
      const ReceiveHandle handle = recv_async(got, kAnySource, options);
      (void)handle.wait();
      ASSERT_EQ(got.item<int>(), latest[handle.source()]++);
    }
  } else {
    for (int i = 0; i < kMessages; ++i) send(at::full({1}, i, at::kInt), 0, options);
  }
  barrier();
}

TEST(RecvFromAny, TagsAndProcessSetsAreApart) {
  const ProcessSet all = split_process_set(0);
  const Handle of_set = send_async(at::full({1}, 7), next(), {.process_set = all});
  const Handle of_tag = send_async(at::full({1}, 8), next(), {.tag = 3});
  const Handle of_world = send_async(at::full({1}, 9), next());
  const at::Tensor first = at::zeros({3}, at::kLong);
  const ReceiveHandle world = recv_async(first.slice(0, 0, 1), kAnySource);
  const ReceiveHandle tag = recv_async(first.slice(0, 1, 2), kAnySource, {.tag = 3});
  const ReceiveHandle set = recv_async(first.slice(0, 2, 3), kAnySource, {.process_set = all});
  for (const ReceiveHandle& each : {set, tag, world}) {
    EXPECT_EQ(each.source(), (rank() + size() - 1) % size());
  }
  expect_equal(first, at::tensor(std::vector<int64_t>{9, 8, 7}));
  for (const Handle& each : {of_set, of_tag, of_world}) (void)each.wait();
  remove_process_set(all);
}

// A receive that names its rank takes the next message of that rank, though one from any rank
// waits.
TEST(RecvFromAny, BothKindsOnOneTag) {
  const PointToPointOptions options = {.tag = 4};
  const int other = size() - 1;
  if (rank() == 0) {
    const at::Tensor any = at::zeros({1}), named = at::zeros({1});
    const ReceiveHandle from_any = recv_async(any, kAnySource, options);
    const ReceiveHandle from_other = recv_async(named, other, options);
    barrier();
    EXPECT_EQ(from_other.source(), other);
    EXPECT_EQ(named.item<float>(), 1);
    EXPECT_EQ(from_any.source(), other);
    EXPECT_EQ(any.item<float>(), 2);
  } else {
    barrier();
    for (int i = 1; rank() == other && i < 3; ++i) send(at::full({1}, float(i)), 0, options);
  }
  barrier();
}

// Receives that name a rank may take all numbers of its messages. Other ranks may still send then,
// and that rank may when one of these messages has come.
TEST(RecvFromAny, WaitsForANumberToBeFree) {
  constexpr int kNumbers = 1'024;
  const PointToPointOptions options = {.tag = 9};
  const int other = size() - 1;
  if (rank() == 0) {
    const at::Tensor named = at::zeros({kNumbers}, at::kInt), any = at::zeros({1}, at::kInt);
    std::vector<Handle> from_other;
    for (int i = 0; i < kNumbers; ++i) {
      from_other.push_back(recv_async(named.slice(0, i, i + 1), other, options));
    }
    for (int source = 1; source < size(); ++source) {
      const ReceiveHandle from_any = recv_async(any, kAnySource, options);
      barrier();  // one after the other sends
      EXPECT_EQ(from_any.source(), source);
      EXPECT_EQ(any.item<int>(), source == other ? kNumbers : source);
      barrier();
    }
    for (const Handle& each : from_other) (void)each.wait();
    expect_equal(named, at::arange(kNumbers, at::kInt));
  } else {
    for (int source = 1; source < size(); ++source) {
      barrier();
      for (int i = 0; rank() == source && source == other && i <= kNumbers; ++i) {
        send(at::full({1}, i, at::kInt), 0, options);
      }
      if (rank() == source && source != other) send(at::full({1}, source, at::kInt), 0, options);
      barrier();
    }
  }
}

TEST(RecvFromAny, SeveralThreads) {
  constexpr int kEach = 50, kThreads = 3;
  if (rank() == 0) {
    std::atomic<int64_t> sum{0};
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&] {
        for (int i = 0; i < kEach * (size() - 1); ++i) {
          const at::Tensor got = at::zeros({1}, at::kLong);
          (void)recv(got, kAnySource, {.tag = 5});
          sum += got.item<int64_t>();
        }
      });
    }
    threads.clear();
    const int64_t count = kThreads * kEach;
    EXPECT_EQ(sum, (size() - 1) * count * (count - 1) / 2);
  } else {
    for (int64_t i = 0; i < kThreads * kEach; ++i) send(at::full({1}, i), 0, {.tag = 5});
  }
  barrier();
}

TEST(RecvFromAny, AMismatchIsTheErrorOfBothAndTheNextMessageWorks) {
  const PointToPointOptions options = {.tag = 6};
  if (rank() == 0) {
    const ReceiveHandle wrong = recv_async(at::zeros({3}), kAnySource, options);
    EXPECT_THAT(error_of([&] { (void)wrong.wait(); }),
                AllOf(HasSubstr("send 1 to 0, tag 6"), HasSubstr("[3] on rank 0, [4] on rank 1")));
    EXPECT_THAT(error_of([&] { (void)wrong.source(); }), HasSubstr("[4] on rank 1"));
    EXPECT_EQ(recv(at::zeros({4}), kAnySource, options).sum().item<int>(), 4);
    EXPECT_THAT(error_of([&] { (void)recv(at::zeros({4}), kAnySource, options); }),
                HasSubstr("refused on rank 1"));
  } else if (rank() == 1) {
    EXPECT_THAT(error_of([&] { send(at::ones({4}), 0, options); }), HasSubstr("[4] on rank 1"));
    send(at::ones({4}), 0, options);
    EXPECT_THAT(error_of([&] { send(at::Tensor(), 0, options); }), HasSubstr("is undefined"));
  }
  barrier();
}

// The wrong call takes no message, so the next call gets the next one.
TEST(RecvFromAny, AWrongCallTakesNothing) {
  const PointToPointOptions options = {.tag = 7};
  if (rank() == 0) {
    EXPECT_THAT(error_of([&] { (void)recv(at::Tensor(), kAnySource, options); }),
                AllOf(HasSubstr("recv 0 from any, tag 7"), HasSubstr("is undefined")));
    EXPECT_EQ(recv(at::zeros({2}), kAnySource, options).sum().item<int>(), 2);
  } else if (rank() == 1) {
    send(at::ones({2}), 0, options);
  }
  barrier();
  EXPECT_THAT(error_of([&] { send(at::ones({1}), kAnySource); }),
              HasSubstr("is not in the process set"));
  const ProcessSet alone = add_process_set_among({rank()}, 21);
  EXPECT_THAT(error_of([&] { (void)recv(at::ones({1}), kAnySource, {.process_set = alone}); }),
              HasSubstr("there is no other rank to receive from"));
  remove_process_set(alone);
}

TEST(RecvFromAny, ATimeoutTellsWhoWaits) {
  using namespace std::chrono_literals;
  const PointToPointOptions options = {.tag = 8};
  const at::Tensor got = at::zeros({1});
  ReceiveHandle handle;
  if (rank() == 0) {
    handle = recv_async(got, kAnySource, options);
    EXPECT_THAT(error_of([&] { (void)handle.wait(1500ms); }),
                AllOf(HasSubstr("recv 0 from any, tag 8"),
                      HasSubstr("rank 0 waits for a message with tag 8 from any rank")));
  }
  barrier();
  if (rank() == 1) send(at::ones({1}), 0, options);
  if (rank() == 0) {
    EXPECT_EQ(handle.source(), 1);
  }
  barrier();
}

// The session shuts down while a receive waits. In the next session the count begins anew.
TEST(RecvFromAny, ShutdownEndsIt) {
  const int me = rank();
  ReceiveHandle handle;
  if (me == 0) handle = recv_async(at::zeros({1}), kAnySource, {.tag = 9});
  shutdown();
  if (me == 0) {
    EXPECT_THAT(error_of([&] { (void)handle.wait(); }), HasSubstr("shut"));
  }
  init();
  if (me == 1) send(at::ones({1}), 0, {.tag = 9});
  if (me == 0) {
    EXPECT_EQ(recv(at::zeros({1}), kAnySource, {.tag = 9}).item<int>(), 1);
  }
}

}  // namespace
}  // namespace horon::recv_from_any_test
