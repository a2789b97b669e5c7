#include "runtime/engine/forecast/forecast.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/engine/engine.h"
#include "runtime/engine/stream/gradient_stream.h"
#include "runtime/engine/stream/plan/codec_timing.h"
#include "runtime/engine/stream/plan/stream_plan.h"
#include "scheduler/plan/arith.h"
#include "scheduler/plan/profile.h"
#include "scheduler/replanner.h"

namespace sirtaki::engine {
namespace {

constexpr int kHosts = 2;  // any number of hosts above one has plans
// A policy confirms a change by two profiles and prunes its level once more; after so many profiles without a change
// nothing is left to decide. The limit of steps only bounds a search that does not settle.
constexpr int kQuietProfiles = 4;
constexpr std::uint64_t kMostSteps = 2048;
constexpr int kMostRanks = 1024;
constexpr std::int64_t kMostUs = std::int64_t{1} << 40;

std::vector<std::int64_t> ready_by_elements(const StreamSpec& spec, std::int64_t backward_us) {
  const std::vector<scheduler::TensorInfo> infos = tensor_infos(spec);
  std::int64_t total = 0;
  for (const scheduler::TensorInfo& info : infos) {
    total += info.numel();
  }
  std::vector<std::int64_t> ready(infos.size(), backward_us);
  std::int64_t before = 0;
  for (const int index : spec.order) {
    before += infos[static_cast<std::size_t>(index)].numel();
    const double part = total > 0 ? static_cast<double>(before) / static_cast<double>(total) : 1.0;
    ready[static_cast<std::size_t>(index)] = static_cast<std::int64_t>(part * static_cast<double>(backward_us));
  }
  return ready;
}

Status check(const StreamSpec& spec, const Conditions& at) {
  const auto in_range = [](std::int64_t us) { return us >= 0 && us <= kMostUs; };
  SRT_TRY(check_ranks(at.ranks));
  if (at.link.bytes_per_second < 1 || at.link.latency_ns < 0) {
    return invalid_argument("a forecast needs the bandwidth and the latency of the link, both as measured");
  }
  if (!in_range(at.forward_us) || !in_range(at.backward_us) || !std::ranges::all_of(at.ready_us, in_range)) {
    return invalid_argument("a forecast needs times of 0 or more for forward, backward and gradients");
  }
  if (!at.ready_us.empty() && at.ready_us.size() != spec.tensors.size()) {
    return invalid_argument("times of " + std::to_string(at.ready_us.size()) + " gradients do not fit " +
                            std::to_string(spec.tensors.size()) + " tensors");
  }
  return {};
}

// The program waits for all gradients at the end of backward.
scheduler::StepProfile profile_of(const StreamSpec& spec, const Conditions& at) {
  scheduler::StepProfile profile;
  profile.ready_us = at.ready_us.empty() ? ready_by_elements(spec, at.backward_us) : at.ready_us;
  profile.need_us.assign(spec.tensors.size(), 0);
  profile.backward_us = at.backward_us;
  profile.forward_us = at.forward_us;
  profile.latency_ns = at.link.latency_ns;
  profile.bytes_per_second = at.link.bytes_per_second;
  profile.codec_costs = at.codec_costs;
  return profile;
}

void settle(scheduler::Replanner& replanner, scheduler::StepProfile profile, const scheduler::PlannerOptions& options) {
  int quiet = 0;
  for (std::uint64_t step = 1; step < kMostSteps && quiet < kQuietProfiles && !replanner.frozen(); ++step) {
    if (!replanner.wants_profile(step)) {
      continue;
    }
    const scheduler::Prediction now = scheduler::predict(*replanner.current(), profile, options);
    profile.step_us = std::max<std::int64_t>(now.step_us, 1);
    profile.exposed_us = now.exposed_us;
    const bool changes = replanner.consider(step, profile).has_value();
    quiet = changes ? 0 : quiet + 1;
    if (changes) {
      replanner.adopted(step);
    }
  }
}

std::int64_t sent_bytes(const scheduler::Plan& plan, int ranks) {
  std::int64_t bytes = 0;
  for (const scheduler::Partition& partition : plan.partitions()) {
    bytes += partition.wire_bytes;
  }
  return std::int64_t{2} * (ranks - 1) * bytes / ranks;
}

}  // namespace

std::int64_t distant_latency_us(const Conditions& at) {
  return scheduler::distant_latency(at.link.latency_ns) / scheduler::kNsPerUs;
}

Status check_ranks(int ranks) {
  if (ranks < 1 || ranks > kMostRanks) {
    return invalid_argument("a forecast for " + std::to_string(ranks) + " ranks; it takes 1 to " +
                            std::to_string(kMostRanks));
  }
  return {};
}

scheduler::CodecCosts time_codecs(int ranks) {
  return time_codecs([] { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }, ranks);
}

Result<StepForecast> forecast_step(StreamSpec spec, const Conditions& at, const Config& config) {
  SRT_TRY(check(spec, at));
  const EngineOptions engine = engine_options(config, kHosts);
  if (spec.codec.empty()) {
    spec.codec = engine.codec;
  }
  fill_order(spec);
  SRT_TRY(read_compression(spec));
  const auto facts = std::make_shared<const CatalogFacts>(at.ranks);
  const scheduler::PlannerOptions planner = planner_options(
      {.layout = engine.layout, .credit_bytes = engine.credit_bytes, .exchange_bytes = engine.exchange_bytes}, *facts);
  SRT_ASSIGN(auto first, first_plan(spec, engine.layout, *facts));
  auto controller = controller_for(spec, planner, facts);
  const scheduler::StepProfile profile = profile_of(spec, at);
  if (controller != nullptr && controller->begins_by_link() && engine.replan && at.ranks > 1) {
    SRT_ASSIGN(first, plan_by_link(*controller, profile, spec, first, planner));
  }
  scheduler::Replanner replanner(first, {.planner = planner, .frozen = !engine.replan || at.ranks == 1},
                                 std::move(controller));
  settle(replanner, profile, planner);
  StepForecast out;
  out.plan = replanner.current();
  out.prediction = scheduler::predict(*out.plan, profile, planner);
  out.sent_bytes = sent_bytes(*out.plan, at.ranks);
  out.policy = replanner.policy_log();
  return out;
}

Result<StepForecast> forecast_transfer(StreamSpec spec, const Conditions& at, const Config& config) {
  Conditions alone = at;
  alone.forward_us = alone.backward_us = 0;
  alone.ready_us.assign(spec.tensors.size(), 0);
  return forecast_step(std::move(spec), alone, config);
}

void write_tensors(JsonWriter& json, const StreamSpec& spec, const StepForecast& step) {
  write_tensors(json, spec, *step.plan, {});
}

}  // namespace sirtaki::engine
