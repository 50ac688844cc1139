// HORON_AUTOTUNE searches the length of the pieces in which buckets are reduced, too.
#include <fstream>
#include <map>
#include <string>

#include "horon/tests/support/mpi_main.h"
#include "horon/tests/torch_bindings/gradients/autotune_support.h"

namespace horon {
namespace {

using testing::Each;
using testing::HasSubstr;
using namespace testing_support;

class AutotunePieces : public AutotuneFixture {
 protected:
  // What an earlier run has kept for a reducer "model".
  void write_kept(const std::string& settings) const {
    if (test_rank() != 0) return;
    const int hosts = ops::runtime().topology().host_count();
    std::ofstream(path_ + ".warm")
        << "# Horon autotuning 1: reducer, facts, settings\nmodel\t"
        << core::concat(kTunedParameters, " gradients of ",
                        std::to_string(kTunedParameters * kElementsOfEach), " elements (Average), ",
                        size(), " ranks on ", hosts, hosts == 1 ? " host" : " hosts", "\t")
        << settings << '\n';
  }
};

// The length of the pieces is searched beside the sizes of buckets: what the clock says is found,
// used by all ranks, written down, and taken over by the next run.
TEST_F(AutotunePieces, FasterPiecesAreFoundAndTakenOverByTheNextRun) {
  if (test_size() == 1) return;
  std::map<std::string, std::string> knobs = kOneBucket;
  knobs["HORON_AUTOTUNE_SAMPLES"] = "16";
  std::string found;
  for (int run = 0; run < 2; ++run) {
    start(knobs);
    if (rank() == 0) testing::internal::CaptureStderr();
    {
      CostlyTraining training(kCostly, {.name = "model"});
      training.plant_best_piece(kCostly);
      EXPECT_EQ(training.piece_bytes(), 0);
      if (run == 0) training.steps_until_kept(path_ + ".warm");
      if (run == 1) training.steps(240);
      EXPECT_GE(training.piece_bytes(), CostlyTraining::kBestPiece / 2);
      EXPECT_LE(training.piece_bytes(), CostlyTraining::kBestPiece * 2);
      EXPECT_THAT(allgather_object(training.piece_bytes()), Each(training.piece_bytes()));
      if (rank() == 0) {
        const std::string piece = std::to_string(training.piece_bytes());
        const std::string log = testing::internal::GetCapturedStderr();
        EXPECT_EQ(lines_with(log, " HORON_PIECE_BYTES=" + piece), 1) << log;
        const std::string in_words =
            core::bytes_text(static_cast<uint64_t>(training.piece_bytes()));
        EXPECT_GE(lines_with(log, ", in pieces of " + in_words + " ("), 1) << log;
        EXPECT_THAT(kept(), HasSubstr(" piece_bytes=" + piece + "\n"));
        if (run == 1) {
          EXPECT_EQ(lines_with(log, ": search "), 0) << log;
          EXPECT_EQ(kept(), found);
        }
      }
    }
    found = kept();
  }
}

// A file from before HORON_AUTOTUNE searched the length of pieces.
TEST_F(AutotunePieces, AFileWithoutPiecesIsTakenOver) {
  if (test_size() == 1) return;
  write_kept("bucket_bytes=67108864 first_bucket_bytes=16777216");
  start(kManyBuckets);
  {
    CostlyTraining training(kCostly, {.name = "model"});
    training.steps(240);
    EXPECT_EQ(training.buckets(), 1);
    EXPECT_EQ(training.piece_bytes(), 0);
  }
  if (rank() != 0) return;
  EXPECT_EQ(lines_with(table(), ",search,"), 0) << table();
  EXPECT_EQ(lines_with(table(), ",kept,67108864,16777216,0,1,"), 1) << table();
  EXPECT_THAT(kept(), HasSubstr(" first_bucket_bytes=16777216 piece_bytes=0\n"));
}

// Where the collective has no pieces, a length that is set by hand stays, whatever a file says.
TEST_F(AutotunePieces, PiecesAreNotSearchedWhereTheCollectiveHasNone) {
  if (test_size() == 1) return;
  std::map<std::string, std::string> knobs = kManyBuckets;
  knobs.insert({{"HORON_ALLREDUCE", "mpi"}, {"HORON_PIECE_BYTES", "96KiB"}});
  write_kept("bucket_bytes=1024 first_bucket_bytes=1024 piece_bytes=65536");
  start(knobs);
  {
    CostlyTraining training(kCostly, {.name = "model"});
    for (int i = 0; i < 120; ++i) {
      training.step();
      EXPECT_EQ(training.piece_bytes(), 96 << 10);
    }
  }
  if (rank() != 0) return;
  const std::string rows = table();
  EXPECT_EQ(lines_with(rows, ",98304,"), lines_with(rows, "") - 1) << rows;  // but for the title
}

}  // namespace
}  // namespace horon
