#include "horon/bench/step_model.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <sstream>

#include "horon/core/base/error.h"
#include "horon/core/base/parse_number.h"
#include "horon/core/base/text.h"
#include "horon/ops/choice/algorithm.h"
#include "horon/ops/hierarchical/exchange_plan.h"

namespace horon::bench {
namespace {

constexpr double kUsPerMs = 1000;
// Hosts exchange nothing of a bucket before all of them have filled it. Each tells the coordinator
// so, in one message (Filled; Ready while the bucket is not frozen yet), and the coordinator
// answers with another one (Go; or the Plan).
constexpr double kMessagesOfStart = 2;

double sum_of(const std::vector<GradientStage>& stages, double GradientStage::*field) {
  return std::accumulate(
      stages.begin(), stages.end(), 0.0,
      [=](double sum, const GradientStage& stage) { return sum + stage.*field; });
}

// The share of backward after which `bytes` of gradients are there.
double share_at(const std::vector<GradientStage>& stages, double bytes) {
  double share = 0;
  for (const GradientStage& stage : stages) {
    if (bytes <= stage.bytes)
      return share + (stage.bytes > 0 ? stage.share * bytes / stage.bytes : 0);
    bytes -= stage.bytes;
    share += stage.share;
  }
  return share;
}

// Buckets travel one behind the other, each as soon as it is full.
struct Traffic {
  double end_us = 0;           // from the begin of backward
  double bytes_meanwhile = 0;  // that had travelled when backward ended
};
Traffic send_buckets(const AllreduceCost& cost, const std::vector<FullBucket>& buckets,
                     double backward_us) {
  Traffic traffic;
  double wire_free_us = 0;
  for (const FullBucket& bucket : buckets) {
    const double begins_us = std::max(backward_us * bucket.share, wire_free_us);
    wire_free_us = begins_us + bucket.bytes / cost.bytes_per_us;
    traffic.bytes_meanwhile +=
        std::clamp((backward_us - begins_us) * cost.bytes_per_us, 0.0, bucket.bytes);
  }
  traffic.end_us = wire_free_us + cost.latency_us;
  return traffic;
}

}  // namespace

AllreduceCost fit_cost(const std::vector<Sample>& samples) {
  // Least squares of latency / us + (bytes / us) / rate = 1.
  double aa = 0;
  double ab = 0;
  double bb = 0;
  double a1 = 0;
  double b1 = 0;
  for (const Sample& sample : samples) {
    const double a = 1 / sample.us;
    const double b = sample.bytes / sample.us;
    aa += a * a;
    ab += a * b;
    bb += b * b;
    a1 += a;
    b1 += b;
  }
  const double determinant = aa * bb - ab * ab;
  HORON_CHECK(determinant > 0, "a line needs samples of two sizes");
  double latency = (a1 * bb - b1 * ab) / determinant;
  double us_per_byte = (b1 * aa - a1 * ab) / determinant;
  if (latency < 0) {  // the best line through the origin
    latency = 0;
    us_per_byte = b1 / bb;
  } else if (us_per_byte <= 0) {
    latency = a1 / aa;
    us_per_byte = 1e-9;
  }
  return {latency, 1 / us_per_byte, 0};
}

AllreduceCost cost_between_hosts(int hosts, int64_t bytes, const ops::MachineConstants& constants,
                                 double compute_us_per_byte, ops::WireType allowed) {
  ops::HostsLayout layout;
  layout.hosts = hosts;
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  const int64_t count = (bytes + kFloat - 1) / kFloat;
  const ops::ExchangePlan plan =
      ops::plan_exchange(layout, DataType::Float32, ReduceOp::Average, count, allowed, constants);
  const ops::Choice choice{plan.one_round ? ops::Algorithm::OneRound : ops::Algorithm::TwoRounds};
  ops::Situation situation;
  situation.reach = ops::Reach::Hosts;
  situation.hosts = hosts;
  situation.bytes = situation.result_bytes = plan.wire_type.bytes(count);
  const double all_us = ops::compared_us(situation, choice, constants);
  situation.bytes = situation.result_bytes = 0;
  const double exchange_us = ops::compared_us(situation, choice, constants);
  return {kMessagesOfStart * constants.message_us + exchange_us,
          static_cast<double>(bytes) / (all_us - exchange_us), compute_us_per_byte};
}

std::vector<GradientStage> stages_in(const std::string& text) {
  const auto fail = [&] {
    throw Error(ErrorCode::Config,
                core::concat("\"", text,
                             "\": give the bytes of the gradients, or bytes:share,bytes:share,... "
                             "in the order in which backward makes them"));
  };
  std::vector<GradientStage> stages;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t colon = part.find(':');
    const auto bytes = core::parse_bytes(part.substr(0, colon));
    const auto share = colon == std::string::npos ? std::optional(1.0)
                                                  : core::parse_number(part.substr(colon + 1));
    if (!bytes || !share || !(*bytes >= 1) || !(*share > 0 && *share < 1e9)) fail();
    stages.push_back({*bytes, *share});
  }
  if (stages.empty()) fail();
  const double shares = sum_of(stages, &GradientStage::share);
  for (GradientStage& stage : stages) stage.share /= shares;
  return stages;
}

std::vector<FullBucket> full_buckets(const std::vector<GradientStage>& stages,
                                     const Buckets& buckets) {
  const double bytes = sum_of(stages, &GradientStage::bytes);
  std::vector<FullBucket> all;
  double begin = 0;
  for (double end = std::min(buckets.first_bytes, bytes);;
       end = std::min(end + buckets.bytes, bytes)) {
    all.push_back({end - begin, share_at(stages, end)});
    begin = end;
    if (end >= bytes) return all;
  }
}

StepPrediction predict_step(const TrainedModel& model, const AllreduceCost& cost,
                            const Buckets& buckets) {
  const double alone_us = model.alone_ms * kUsPerMs;
  const double optimizer_us = alone_us * model.optimizer_share;
  const double forward_us = alone_us * model.forward_share;
  const double backward_us = alone_us - forward_us - optimizer_us;
  const double bytes = sum_of(model.stages, &GradientStage::bytes);
  const std::vector<FullBucket> full = full_buckets(model.stages, buckets);
  // Bytes that travel during backward make it longer, so that more of them travel during it.
  double longer_us = backward_us;
  Traffic traffic;
  constexpr int kRounds = 50;
  for (int round = 0; round < kRounds; ++round) {
    traffic = send_buckets(cost, full, longer_us);
    longer_us = backward_us + cost.compute_us_per_byte * traffic.bytes_meanwhile;
  }
  StepPrediction prediction;
  const double end_us = std::max(longer_us, traffic.end_us);
  prediction.step_ms = (forward_us + end_us + optimizer_us) / kUsPerMs;
  prediction.compute_ms = (forward_us + longer_us + optimizer_us) / kUsPerMs;
  prediction.communication_ms =
      (bytes / cost.bytes_per_us + static_cast<double>(full.size()) * cost.latency_us) / kUsPerMs;
  prediction.exposed_ms = (end_us - longer_us) / kUsPerMs;
  prediction.buckets = static_cast<int>(full.size());
  return prediction;
}

}  // namespace horon::bench
