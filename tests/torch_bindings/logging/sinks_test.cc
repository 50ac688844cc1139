// Files of logged values as their readers see them.
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include "horon/tests/support/error_of.h"
#include "horon/torch_bindings/logging/event_file.h"
#include "horon/torch_bindings/logging/text_sinks.h"

namespace horon::sinks_test {
namespace {

using test::error_of;
using testing::HasSubstr;
using testing::StartsWith;

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInf = std::numeric_limits<double>::infinity();

class Sinks : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "sinks_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  static std::string content(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }

  std::string folder_;
};

TEST_F(Sinks, Console) {
  std::FILE* const out = std::fopen(path("out").c_str(), "w");
  ConsoleSink(out).write({120, 0, {{"loss", 0.42131}, {"accuracy", 0.875}, {"bad", kNan}}});
  EXPECT_EQ(content(path("out")), "step 120  loss 0.42131  accuracy 0.875  bad nan\n");
  std::fclose(out);
}

TEST_F(Sinks, JsonLines) {
  JsonlSink sink(path("log.jsonl"));
  sink.write({1, 1000.5, {{"train/\"loss\"", 0.1}, {"bad", kNan}, {"worse", -kInf}}});
  sink.write({-2, 1e10, {}});
  const std::string two =
      "{\"step\": 1, \"time\": 1000.5, \"train/\\\"loss\\\"\": 0.1, \"bad\": null, \"worse\": "
      "null}\n{\"step\": -2, \"time\": 10000000000}\n";
  EXPECT_EQ(content(path("log.jsonl")), two);
  JsonlSink(path("log.jsonl")).write({3, 2, {}});
  EXPECT_EQ(content(path("log.jsonl")), two + "{\"step\": 3, \"time\": 2}\n");
  JsonlSink(path("log.jsonl"), {.append = false}).write({3, 2, {}});
  EXPECT_EQ(content(path("log.jsonl")), "{\"step\": 3, \"time\": 2}\n");
  EXPECT_THAT(error_of([&] { JsonlSink(path("none/log")).write({}); }),
              StartsWith("failed: can't write " + path("none/log") + ": No such file"));
}

// A disk that is full for a while: here, a largest size of files.
class FullDisk {
 public:
  explicit FullDisk(size_t bytes) : ignored_(std::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit full{bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  }
  ~FullDisk() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before_), 0);
    (void)std::signal(SIGXFSZ, ignored_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void (*ignored_)(int);
  rlimit before_{};
};

std::string error_on_full_disk(size_t bytes, LogSink& sink) {
  const FullDisk full(bytes);
  return error_of([&] { sink.write({2, 11, {{"loss", 0.25}}}); });
}

TEST_F(Sinks, WhatAFullDiskHasCutOffIsTakenOutAgain) {
  JsonlSink lines(path("log.jsonl"));
  lines.write({1, 10, {{"loss", 0.5}}});
  const std::string one = content(path("log.jsonl"));
  EXPECT_THAT(error_on_full_disk(one.size() + 9, lines),
              HasSubstr("can't write " + path("log.jsonl")));
  lines.write({3, 12, {}});
  EXPECT_EQ(content(path("log.jsonl")), one + "{\"step\": 3, \"time\": 12}\n");

  // Also where it was the head of the file.
  CsvSink table(path("log.csv"));
  EXPECT_THAT(error_on_full_disk(3, table), HasSubstr("can't write " + path("log.csv")));
  table.write({3, 12, {{"loss", 0.5}}});
  EXPECT_EQ(content(path("log.csv")), "step,time,loss\n3,12,0.5\n");
  TensorBoardSink events(path("run"));
  EXPECT_THAT(error_on_full_disk(3, events), HasSubstr("can't write " + path("run")));
  events.write({3, 12, {{"loss", 0.5}}});
  EXPECT_THAT(content(events.path()), HasSubstr("brain.Event:2"));
  TensorBoardSink others(path("run"));
  others.write({3, 12, {{"loss", 0.5}}});
  EXPECT_NE(others.path(), events.path()) << "begun in the same second";
}

TEST_F(Sinks, CsvGrowsColumnsAndGoesOnAfterARestart) {
  {
    CsvSink sink(path("log.csv"));
    sink.write({1, 10, {{"loss", 0.5}}});
    sink.write({2, 11, {{"a,\"b\"", 3}, {"loss", kNan}}});
    sink.write({3, 12, {}});
  }
  const std::string begin = "step,time,loss,\"a,\"\"b\"\"\"\n1,10,0.5,\n2,11,nan,3\n3,12,,\n";
  EXPECT_EQ(content(path("log.csv")), begin);
  CsvSink again(path("log.csv"));
  again.write({4, 13, {{"a,\"b\"", 4}}});
  EXPECT_EQ(content(path("log.csv")), begin + "4,13,,4\n");
  CsvSink(path("log.csv"), {.append = false}).write({5, 14, {{"x", 1}}});
  EXPECT_EQ(content(path("log.csv")), "step,time,x\n5,14,1\n");
  std::ofstream(path("foreign.csv")) << "name,age\n";
  EXPECT_THAT(error_of([&] { CsvSink(path("foreign.csv")).write({}); }),
              HasSubstr("first line is not the header of a log"));
  EXPECT_EQ(content(path("foreign.csv")), "name,age\n");
  std::ofstream(path("notes.csv")) << "\nmy notes\n";
  EXPECT_THAT(error_of([&] { CsvSink(path("notes.csv")).write({}); }),
              HasSubstr("can't append to " + path("notes.csv")));
  EXPECT_EQ(content(path("notes.csv")), "\nmy notes\n");
  std::ofstream(path("empty.csv")).close();
  CsvSink(path("empty.csv")).write({1, 10, {}});
  EXPECT_EQ(content(path("empty.csv")), "step,time\n1,10\n");
}

TEST_F(Sinks, CsvHasItsColumnsInOneLine) {
  CsvSink sink(path("log.csv"));
  sink.write({1, 10, {{"of\ntwo lines", 0.5}}});
  sink.write({2, 11, {{"of\ntwo lines", 1}, {"loss", 2}}});
  CsvSink(path("log.csv")).write({3, 12, {{"loss", 3}, {"of\ntwo lines", 4}}});
  EXPECT_EQ(content(path("log.csv")),
            "step,time,of two lines,loss\n1,10,0.5,\n2,11,1,2\n3,12,4,3\n");
}

// Neither the head that it writes nor the rows that it would go on with are those of a wider table.
TEST_F(Sinks, CsvThatCanNotGrowStaysAsItIsAndGrowsLater) {
  for (const bool append : {true, false}) {
    CsvSink sink(path("log.csv"), {.append = append});
    sink.write({1, 10, {}});
    const std::string one = content(path("log.csv"));
    EXPECT_EQ(one, "step,time\n1,10\n");
    EXPECT_THAT(error_on_full_disk(one.size(), sink), HasSubstr("can't write"));
    EXPECT_EQ(content(path("log.csv")), one);
    sink.write({3, 12, {}});
    EXPECT_EQ(content(path("log.csv")), one + "3,12\n");
    sink.write({4, 13, {{"loss", 0.5}}});
    EXPECT_EQ(content(path("log.csv")), "step,time,loss\n1,10,\n3,12,\n4,13,0.5\n");
    std::filesystem::remove(path("log.csv"));
  }
}

// Rows that can't be read must not be lost with the file that they stand in.
TEST_F(Sinks, CsvThatCanNotBeReadIsNotReplaced) {
  CsvSink sink(path("log.csv"));
  sink.write({1, 10, {}});
  std::filesystem::remove(path("log.csv"));
  std::filesystem::create_symlink("/proc/self/mem", path("log.csv"));  // address 0 can't be read
  EXPECT_THAT(error_of([&] {
                sink.write({2, 11, {{"loss", 0.5}}});
              }),
              HasSubstr("can't append to " + path("log.csv") + ": it can't be read"));
  EXPECT_TRUE(std::filesystem::is_symlink(path("log.csv")));
}

// What has gone through it can't be read again, and a reader would take its end for that of the
// table.
TEST_F(Sinks, CsvToAPipeNamesItsColumnsAnew) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  const int reader = ::open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  CsvSink sink(path("pipe"));
  sink.write({1, 10, {{"loss", 0.5}}});
  sink.write({2, 11, {{"loss", 0.25}, {"lr", 1}}});
  std::array<char, 200> text{};
  EXPECT_GT(::read(reader, text.data(), text.size() - 1), 0);
  EXPECT_STREQ(text.data(), "step,time,loss\n1,10,0.5\nstep,time,loss,lr\n2,11,0.25,1\n");
  EXPECT_EQ(::read(reader, text.data(), 1), -1) << "it has ended";
  ::close(reader);
}

// Of a program that was killed within a line.
TEST_F(Sinks, TornLinesEndWhereAnotherRunGoesOn) {
  std::ofstream(path("log.jsonl")) << "{\"step\": 1, \"ti";
  JsonlSink(path("log.jsonl")).write({2, 11, {}});
  JsonlSink(path("log.jsonl")).write({3, 12, {}});
  EXPECT_EQ(content(path("log.jsonl")),
            "{\"step\": 1, \"ti\n{\"step\": 2, \"time\": 11}\n{\"step\": 3, \"time\": 12}\n");
  std::ofstream(path("log.csv")) << "step,time,loss\n1,1";
  CsvSink(path("log.csv")).write({2, 11, {{"loss", 0.5}}});
  EXPECT_EQ(content(path("log.csv")), "step,time,loss\n1,1\n2,11,0.5\n");
}

TEST_F(Sinks, Prometheus) {
  PrometheusSink sink(path("horon.prom"));
  sink.write({1, 10, {{"train/loss", 0.5}, {"train loss", kNan}}});
  sink.write({2, 11, {{"train/loss", -kInf}, {"a\\\"b\n", 1}}});
  EXPECT_EQ(content(path("horon.prom")),
            "# TYPE horon_a__b_ gauge\nhoron_a__b_{name=\"a\\\\\\\"b \"} 1\n"
            "# TYPE horon_step gauge\nhoron_step 2\n"
            "# TYPE horon_time_seconds gauge\nhoron_time_seconds 11\n"
            "# TYPE horon_train_loss gauge\nhoron_train_loss{name=\"train/loss\"} -Inf\n"
            "horon_train_loss{name=\"train loss\"} NaN\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);  // none temporary
}

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    std::array<char, 3> two{};
    std::snprintf(two.data(), two.size(), "%02x", static_cast<unsigned>(byte) & 0xff);
    text += two.data();
  }
  return text;
}

TEST(EventFile, KnownBytes) {
  EXPECT_EQ(torch_detail::crc32c("123456789"), 0xe3069283);
  EXPECT_EQ(torch_detail::masked_crc32c("123456789"), 0xc78ab0e5);
  EXPECT_EQ(hex(torch_detail::tf_record(torch_detail::version_event(1))),
            "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a");
  EXPECT_EQ(hex(torch_detail::tf_record(torch_detail::scalars_event({1, 1, {{"loss", 0.5}}}))),
            "1a00000000000000129bd82d09000000000000f03f10012a0d0a0b0a046c6f7373150000003f27f95db1");
}

// A reader of its own, bit by bit where the writer has tables.
uint32_t slow_masked_crc(const std::string& bytes) {
  uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0x82f63b78 & (0 - (crc & 1)));
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

template <class T>
T number_at(const std::string& bytes, size_t at) {
  T number;
  std::memcpy(&number, bytes.substr(at, sizeof(number)).data(), sizeof(number));
  return number;
}

// The contents of a file's records, whose checksums must be right.
std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    const auto length = number_at<uint64_t>(file, at);
    EXPECT_EQ(number_at<uint32_t>(file, at + 8), slow_masked_crc(file.substr(at, 8)));
    records.push_back(file.substr(at + 12, length));
    EXPECT_EQ(number_at<uint32_t>(file, at + 12 + length), slow_masked_crc(records.back()));
    at += 16 + length;
  }
  return records;
}

uint64_t read_varint(const std::string& bytes, size_t& at) {
  uint64_t number = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes.at(at++));
    number |= uint64_t{byte & 0x7fU} << shift;
    if (byte < 0x80) return number;
  }
}

// The fields of a protobuf message: (number, what it holds as bytes).
std::vector<std::pair<uint64_t, std::string>> fields_of(const std::string& message) {
  std::vector<std::pair<uint64_t, std::string>> fields;
  for (size_t at = 0; at < message.size();) {
    const uint64_t key = read_varint(message, at);
    size_t length = 0;
    if ((key & 7) == 0) {
      const uint64_t number = read_varint(message, at);
      fields.emplace_back(key >> 3, std::string(reinterpret_cast<const char*>(&number), 8));
      continue;
    }
    length = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : read_varint(message, at);
    fields.emplace_back(key >> 3, message.substr(at, length));
    at += length;
  }
  return fields;
}

TEST_F(Sinks, TensorBoardEventsCanBeRead) {
  TensorBoardSink sink(path("runs/first"));
  sink.write({3, 1234.5, {{"loss", 0.25}, {"acc/top 5", kNan}}});
  sink.write({int64_t{1} << 40, 1235.5, {{std::string(300, 'n'), -1e30}}});
  EXPECT_THAT(sink.path(), HasSubstr("/runs/first/events.out.tfevents.1234."));
  const std::vector<std::string> records = records_of(content(sink.path()));
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(fields_of(records[0]).at(1).second, "brain.Event:2");
  const auto event = fields_of(records[1]);
  ASSERT_EQ(event.size(), 3U);
  EXPECT_EQ(number_at<double>(event[0].second, 0), 1234.5);
  EXPECT_EQ(number_at<uint64_t>(event[1].second, 0), 3U);
  const auto values = fields_of(event[2].second);
  ASSERT_EQ(values.size(), 2U);
  const auto value = fields_of(values[0].second);
  EXPECT_EQ(value[0].second, "loss");
  EXPECT_EQ(value[1].first, 2U);
  EXPECT_EQ(number_at<float>(value[1].second, 0), 0.25F);
  const auto later = fields_of(records[2]);
  EXPECT_EQ(number_at<uint64_t>(later[1].second, 0), uint64_t{1} << 40);
  EXPECT_EQ(fields_of(fields_of(later[2].second)[0].second)[0].second, std::string(300, 'n'));
}

std::string output_of(const std::string& command) {
  std::string text;
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  for (int letter = std::fgetc(pipe); letter != EOF; letter = std::fgetc(pipe)) {
    text += static_cast<char>(letter);
  }
  ::pclose(pipe);
  return text;
}

TEST_F(Sinks, TensorBoardItselfReadsThem) {
  if (output_of("python3 -c 'import tensorboard; print(1)' 2> /dev/null") != "1\n") {
    GTEST_SKIP() << "TensorBoard is not installed";
  }
  TensorBoardSink sink(path("run"));
  sink.write({3, 1234.5, {{"loss", 0.25}}});
  sink.write({4, 1235.5, {{"loss", 0.125}}});
  const std::string script =
      "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator as E\n"
      "e = E(\"" +
      path("run") +
      "\"); e.Reload()\n"
      "print([(s.step, s.value, s.wall_time) for s in e.Scalars(\"loss\")])\n";
  EXPECT_EQ(output_of("python3 -c '" + script + "' 2> /dev/null"),
            "[(3, 0.25, 1234.5), (4, 0.125, 1235.5)]\n");
}

}  // namespace
}  // namespace horon::sinks_test
