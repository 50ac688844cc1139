// MPI fails while messages of several batches are in flight. The test replaces a function of MPI
// (by MPI's own profiling interface).
#include "horon/ops/mpi/mpi_messages.h"

#include <array>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/support/error_of.h"

namespace {

// As when MPI finds that a message can't arrive: it frees the request, and says so once.
bool fails_once = false;
// Whether the status of the request has the error, or the return value of the call.
bool says_it_in_status = false;
// How many requests the last call has looked at.
int looked_at = 0;

}  // namespace

extern "C" int MPI_Testsome(int count, MPI_Request requests[], int* ended, int indices[],
                            MPI_Status statuses[]) {
  looked_at = count;
  if (!fails_once) return PMPI_Testsome(count, requests, ended, indices, statuses);
  fails_once = false;
  *ended = 0;
  for (int i = 0; i < count; ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    PMPI_Cancel(&requests[i]);
    PMPI_Request_free(&requests[i]);
    if (statuses != MPI_STATUSES_IGNORE) statuses[*ended].MPI_ERROR = MPI_ERR_TRUNCATE;
    indices[(*ended)++] = i;
  }
  return says_it_in_status ? MPI_ERR_IN_STATUS : MPI_ERR_OTHER;
}

namespace horon::ops {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class MpiMessagesTest : public testing::Test {
 protected:
  void SetUp() override { MPI_Comm_dup(MPI_COMM_SELF, &communicator_); }
  void TearDown() override { MPI_Comm_free(&communicator_); }

  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::array<std::byte, 8> data_ = {};
};

TEST_F(MpiMessagesTest, AMessageIsOverOnceItHasArrived) {
  MpiMessages messages(communicator_);
  std::array<std::byte, 8> arrived = {};
  data_.fill(std::byte{7});
  const Messages::Id in = messages.receive(0, 3, arrived.data(), 8);
  EXPECT_FALSE(messages.take_if_over(in));
  const Messages::Id out = messages.send(0, 3, data_.data(), 8);
  bool in_over = false;
  for (bool out_over = false; !in_over || !out_over;) {
    messages.progress();
    in_over = in_over || messages.take_if_over(in);
    out_over = out_over || messages.take_if_over(out);
  }
  EXPECT_EQ(arrived, data_);
}

// An alltoall among hundreds of ranks has thousands of messages under way, a small allreduce a few.
TEST_F(MpiMessagesTest, ALookIsNotLongerForMessagesOfThePast) {
  MpiMessages messages(communicator_);
  for (const size_t pairs : {64, 1}) {
    std::vector<Messages::Id> under_way;
    for (size_t i = 0; i < pairs; ++i) {
      under_way.push_back(messages.receive(0, 3, data_.data(), 8));
      under_way.push_back(messages.send(0, 3, data_.data(), 0));
    }
    while (!under_way.empty()) {
      messages.progress();
      EXPECT_LE(looked_at, static_cast<int>(2 * pairs));
      std::erase_if(under_way, [&](Messages::Id id) { return messages.take_if_over(id); });
    }
  }
}

// One batch calls progress() for all of them, and so takes the error of another one's message.
TEST_F(MpiMessagesTest, AnErrorIsEverybodys) {
  MpiMessages messages(communicator_);
  const Messages::Id of_another = messages.receive(0, 3, data_.data(), 8);
  fails_once = true;
  const std::string error = error_of([&] { messages.progress(); });
  EXPECT_THAT(error, StartsWith("failed: MPI_Testsome"));
  EXPECT_EQ(error_of([&] { messages.take_if_over(of_another); }), error);
  EXPECT_EQ(error_of([&] { messages.progress(); }), error);
  EXPECT_EQ(error_of([&] { messages.send(0, 3, data_.data(), 8); }), error);
  EXPECT_EQ(error_of([&] { messages.receive(0, 3, data_.data(), 8); }), error);
}

TEST_F(MpiMessagesTest, AnErrorOfARequestIsNamed) {
  MpiMessages messages(communicator_);
  messages.receive(0, 3, data_.data(), 8);
  fails_once = says_it_in_status = true;
  const std::string error = error_of([&] { messages.progress(); });
  says_it_in_status = false;
  EXPECT_THAT(error, AllOf(StartsWith("failed: MPI_Testsome"), HasSubstr("truncated")));
}

TEST_F(MpiMessagesTest, AMessageThatCanNotBePostedIsEverybodysError) {
  MpiMessages messages(communicator_);
  const Messages::Id of_another = messages.receive(0, 3, data_.data(), 8);
  const int nobody = 5;
  const std::string error = error_of([&] { messages.send(nobody, 3, data_.data(), 8); });
  EXPECT_THAT(error, StartsWith("failed: MPI_Isend"));
  EXPECT_EQ(error_of([&] { messages.take_if_over(of_another); }), error);
  EXPECT_EQ(error_of([&] { messages.progress(); }), error);
  // What was posted still ends: its memory goes away.
  const std::array<std::byte, 8> arrived = {};
  MPI_Send(arrived.data(), 8, MPI_BYTE, 0, MpiMessages::kFirstTag + 3, communicator_);
}

}  // namespace
}  // namespace horon::ops
