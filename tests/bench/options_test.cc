#include "horon/bench/options.h"

#include <vector>

#include <gmock/gmock.h>

namespace horon::bench {
namespace {

using testing::HasSubstr;

ParsedOptions parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "horon-bench");
  return parse_options(static_cast<int>(arguments.size()), arguments.data());
}

TEST(BenchOptions, SizesAreThoseOfNcclTests) {
  const Options options = parse({"-b", "8", "-e", "1K", "-f", "4"}).options;
  EXPECT_EQ(options.sizes(), (std::vector<int64_t>{8, 32, 128, 512}));
  EXPECT_EQ(parse({"-b", "2M", "-e", "2M"}).options.sizes(), (std::vector<int64_t>{2 << 20}));
}

TEST(BenchOptions, TheLargestSizesDoNotOverflow) {
  const Options options = parse({"-b", "1", "-e", "9223372036854775807", "-f", "1048576"}).options;
  EXPECT_EQ(options.sizes(),
            (std::vector<int64_t>{1, 1 << 20, int64_t{1} << 40, int64_t{1} << 60}));
}

TEST(BenchOptions, MoreBytesThanANumberHoldsAreRefused) {
  for (const char* option : {"-b", "-e", "--piece-bytes"}) {
    for (const char* bytes : {"9223372036854775808", "8E", "99999999999999999999"}) {
      EXPECT_THAT(parse({option, bytes}).exit_text,
                  HasSubstr("is not a number of bytes below 2^63"));
    }
  }
  EXPECT_EQ(parse({"-e", "1E"}).options.bytes_max, int64_t{1} << 60);
}

TEST(BenchOptions, ANumberThatIsTooSmallOrEndlessIsToldInAFewWords) {
  for (const char* option : {"--idle", "--ratio-max", "--idle-percent-max"}) {
    EXPECT_THAT(parse({option, "0"}).exit_text, HasSubstr("\"0\" is not a number above 0"));
    EXPECT_THAT(parse({option, "inf"}).exit_text, HasSubstr("\"inf\" is not a number above 0"));
  }
  for (const char* option : {"--root", "--max-seconds"}) {
    EXPECT_THAT(parse({option, "-1"}).exit_text, HasSubstr("\"-1\" is not a number from 0 to 1e9"));
  }
  for (const char* network : {"4,inf,500", "4,10,inf", "4,10,nan"}) {
    EXPECT_THAT(parse({"--network", network}).exit_text,
                HasSubstr("is not hosts,Gbit/s,microseconds"));
  }
}

TEST(BenchOptions, ShortAndLongNames) {
  EXPECT_EQ(parse({"-o", "avg"}).options.op, ReduceOp::Average);
  EXPECT_EQ(parse({"--op", "average"}).options.op, ReduceOp::Average);
  EXPECT_EQ(parse({"-d", "half"}).options.dtype, DataType::Float16);
  EXPECT_EQ(parse({"--dtype", "bfloat16"}).options.dtype, DataType::BFloat16);
  EXPECT_EQ(parse({"--collective", "allgather"}).options.collective, CollectiveKind::Allgather);
  EXPECT_FALSE(parse({"--memory", "private"}).options.registered);
  EXPECT_EQ(parse({"--memory", "private", "--offset", "16"}).options.offset, 16);
  EXPECT_FALSE(parse({"-c", "0"}).options.check);
  EXPECT_EQ(parse({"--peer", "mpi,gloo"}).options.peers,
            (std::vector<PeerKind>{PeerKind::Mpi, PeerKind::Gloo}));
  EXPECT_TRUE(parse({"--peer", "none"}).options.peers.empty());
  EXPECT_EQ(parse({"--set", "3,0"}).options.members, (std::vector<int>{0, 3}));
  EXPECT_TRUE(parse({"--set", "all"}).options.has_own_set());
  EXPECT_FALSE(parse({}).options.has_own_set());
  EXPECT_EQ(parse({"--form", "in-place"}).options.form, Form::InPlace);
  EXPECT_EQ(parse({"--collective", "barrier"}).options.sizes(), (std::vector<int64_t>{0}));
  EXPECT_EQ(parse({"--calling", "async"}).options.calling, Calling::Async);
  EXPECT_EQ(parse({"--device", "cuda"}).options.device, DeviceKind::Cuda);
}

TEST(BenchOptions, OfAPrediction) {
  const PredictOptions predict =
      parse({"--predict", "3M:1,1M:1", "--alone-ms", "80", "--network", "4,10,500"})
          .options.predict;
  EXPECT_EQ(predict.model.stages.size(), 2U);
  EXPECT_EQ(predict.model.alone_ms, 80);
  EXPECT_TRUE(predict.network_given);
  EXPECT_EQ(predict.hosts, 4);
  EXPECT_EQ(predict.gbit, 10);
  EXPECT_EQ(predict.delay_us, 500);
  EXPECT_TRUE(parse({}).options.predict.model.stages.empty());
}

TEST(BenchOptions, HelpIsNoFailure) {
  const ParsedOptions parsed = parse({"--help"});
  EXPECT_EQ(parsed.exit_code, 0);
  EXPECT_NE(parsed.exit_text.find("--min-bytes"), std::string::npos);
}

TEST(BenchOptions, WhatComparesNothingIsRefused) {
  const std::vector<const char*> prediction = {"--predict", "1M", "--alone-ms", "1"};
  const auto complaint = [](std::vector<const char*> arguments,
                            const std::vector<const char*>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ParsedOptions parsed = parse(arguments);
    EXPECT_EQ(parsed.exit_code, parsed.exit_text.empty() ? 0 : 2);
    return parsed.exit_text;
  };
  const std::string of_idle = "--peer is for collectives: --idle compares nothing with a peer\n";
  EXPECT_EQ(complaint({"--idle", "1"}, {"--peer", "mpi"}), of_idle);
  EXPECT_EQ(complaint({"--idle", "1"}, {"--peer", "mpi", "--ratio-max", "2"}), of_idle);
  EXPECT_EQ(complaint({"--idle", "1"}, {"--ratio-max", "2"}), "--ratio-max needs --peer\n");
  EXPECT_EQ(complaint(prediction, {"--peer", "mpi,gloo"}),
            "--peer is for collectives: --predict compares nothing with a peer\n");
  EXPECT_EQ(complaint(prediction, {"--idle", "1"}),
            "--idle and --predict can't be combined; choose one\n");
  const std::string of_set = "--set is for collectives: --idle and --predict take all ranks\n";
  EXPECT_EQ(complaint({"--idle", "1"}, {"--set", "0,1"}), of_set);
  EXPECT_EQ(complaint(prediction, {"--set", "all"}), of_set);
  EXPECT_EQ(complaint(prediction, {"-d", "bfloat16"}), "--predict needs --dtype float32\n");
  EXPECT_EQ(complaint(prediction, {"--compression", "bfloat16"}), "");
  EXPECT_EQ(complaint({"--peer", "none"}, {"--ratio-max", "2"}), "--ratio-max needs --peer\n");
  EXPECT_EQ(complaint({"--peer", "mpi"}, {"--gloo-interface", "eth0"}),
            "--gloo-interface needs --peer gloo\n");
  EXPECT_EQ(complaint({"--peer", "mpi,gloo"}, {"--gloo-interface", "eth0", "--ratio-max", "2"}),
            "");
  EXPECT_EQ(complaint({"--idle", "1"}, {"--peer", "none", "--idle-percent-max", "2"}), "");
  EXPECT_EQ(complaint(prediction, {"--peer", "none"}), "");
}

TEST(BenchOptions, WrongArgumentsAreNamed) {
  const auto complaint = [](const std::vector<const char*>& arguments) {
    const ParsedOptions parsed = parse(arguments);
    EXPECT_NE(parsed.exit_code, 0);
    return parsed.exit_text;
  };
  EXPECT_NE(complaint({"-o", "xor"}).find("\"xor\""), std::string::npos);
  EXPECT_NE(complaint({"--offset", "16"}).find("--memory private"), std::string::npos);
  EXPECT_NE(complaint({"--device", "cuda", "--memory", "private"}).find("--device host"),
            std::string::npos);
  EXPECT_NE(complaint({"--memory", "private", "--offset", "6"}).find("multiple"),
            std::string::npos);
  EXPECT_NE(complaint({"--memory", "private", "--offset", "4096"}).find("4095"), std::string::npos);
  EXPECT_NE(complaint({"-b", "0"}).find("--min-bytes"), std::string::npos);
  EXPECT_NE(complaint({"-b", "many"}).find("many"), std::string::npos);
  EXPECT_NE(complaint({"-b", "1K", "-e", "8"}).find("--max-bytes"), std::string::npos);
  EXPECT_NE(complaint({"-f", "1"}).find("--step-factor"), std::string::npos);
  EXPECT_NE(complaint({"-d", "bool", "-o", "avg"}).find("average"), std::string::npos);
  EXPECT_NE(complaint({"--ratio-max", "3"}).find("--peer"), std::string::npos);
  EXPECT_NE(complaint({"--idle-percent-max", "3"}).find("needs --idle\n"), std::string::npos);
  EXPECT_NE(complaint({"--device", "cuda", "--peer", "mpi"}).find("--device"), std::string::npos);
  EXPECT_NE(complaint({"--compression", "int4"}).find("\"int4\""), std::string::npos);
  EXPECT_NE(complaint({"--compression", "int8", "-d", "float64"}).find("float32"),
            std::string::npos);
  EXPECT_NE(complaint({"--compression", "int8", "--collective", "broadcast"}).find("allreduce"),
            std::string::npos);
  EXPECT_NE(complaint({"--piece-bytes", "1K", "--collective", "allgather"}).find("allreduce"),
            std::string::npos);
  EXPECT_NE(complaint({"--tensors", "2"}).find("--calling"), std::string::npos);
  EXPECT_NE(complaint({"--calling", "group", "--collective", "broadcast"}).find("allreduce"),
            std::string::npos);
  EXPECT_NE(complaint({"--collective", "barrier", "--device", "cuda"}).find("barrier"),
            std::string::npos);
  EXPECT_NE(complaint({"--collective", "join"}).find("\"join\""), std::string::npos);
  EXPECT_NE(complaint({"--peer", "mpi,nccl"}).find("\"nccl\""), std::string::npos);
  EXPECT_NE(complaint({"--peer", "mpi,gloo,mpi"}).find("twice"), std::string::npos);
  EXPECT_NE(complaint({"--set", "0,one"}).find("0,one"), std::string::npos);
  EXPECT_NE(complaint({"--set", "1,1"}).find("twice"), std::string::npos);
  EXPECT_NE(complaint({"--predict", "44.7M"}).find("--alone-ms"), std::string::npos);
  EXPECT_NE(complaint({"--predict", "x", "--alone-ms", "1"}).find("\"x\""), std::string::npos);
  EXPECT_NE(
      complaint({"--predict", "1M", "--alone-ms", "1", "--network", "1,10,0"}).find("4,10,500"),
      std::string::npos);
  EXPECT_NE(complaint({"--network", "4,10,0"}).find("--predict"), std::string::npos);
  EXPECT_NE(complaint({"--rehearse"}).find("--predict"), std::string::npos);
  EXPECT_NE(complaint({"--predict", "1M", "--alone-ms", "1", "--device", "cuda"}).find("--device"),
            std::string::npos);
  EXPECT_NE(complaint({"--predict", "1M", "--alone-ms", "1", "--forward-share", "0.99"})
                .find("--forward-share"),
            std::string::npos);
}

}  // namespace
}  // namespace horon::bench
