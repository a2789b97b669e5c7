#include "runtime/engine/stream/plan/plan_agreement.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "scheduler/plan/wire_cost.h"

namespace sirtaki::engine {
namespace {

// Weight of a new loss in the running mean; unit and largest value of losses in profiles.
constexpr double kNewLoss = 0.1;
constexpr double kLossUnit = 1e6;
constexpr double kLargestLoss = 1e5;
// After so many profiles in a row without a link, its transfers will not tell it.
constexpr int kUnknownLinks = 8;

int last_with_elements(const scheduler::Plan& plan, const std::vector<int>& order) {
  for (auto last = order.rbegin(); last != order.rend(); ++last) {
    if (!plan.partitions_of(*last).empty()) {
      return *last;
    }
  }
  return -1;
}

}  // namespace

PlanAgreement::Gauges::Gauges(Stats& stats, const std::string& stream)
    : plan_version(stats.gauge("streams." + stream + ".plan_version")),
      link_latency_ns(stats.gauge("streams." + stream + ".link_latency_ns")),
      link_bytes_per_second(stats.gauge("streams." + stream + ".link_bytes_per_second")),
      measured_step_us(stats.gauge("streams." + stream + ".measured_step_us")),
      predicted_step_us(stats.gauge("streams." + stream + ".predicted_step_us")) {}

PlanAgreement::PlanAgreement(std::string name, const std::shared_ptr<const scheduler::Plan>& first,
                             std::vector<int> order, PlanAgreementOptions options, PlanAgreementDeps deps)
    : name_(std::move(name)),
      order_(std::move(order)),
      first_version_(first->version()),
      deps_(deps),
      codec_costs_(options.codec_costs),
      rank_(options.rank),
      ranks_(options.ranks),
      exchanging_(options.replanner.planner.ranks),
      by_link_(options.controller != nullptr && options.controller->begins_by_link()),
      replanner_(first, options.replanner, std::move(options.controller)),
      recorder_(first->tensors().size()),
      gauges_(deps.stats, name_),
      last_tensor_(last_with_elements(*first, order_)) {
  gauges_.plan_version.set(static_cast<std::int64_t>(first_version_));
}

// Allreduces go one way or another by their size. Payloads go as the plan says; where hosts sum first, a rank sends
// only some of those of its host.
void PlanAgreement::measure(const scheduler::Partition& partition, net::Traffic allreduced) {
  const ReductionKind reduction = partition.format.reduction;
  if (scheduler::consists_of_allreduces(reduction)) {
    meter_.finished(now_ns(), allreduced.bytes, allreduced.exchanges);
  } else {
    meter_.finished(now_ns(), scheduler::link_bytes(partition.wire_bytes, exchanging_),
                    scheduler::exchanges_of(reduction, exchanging_));
  }
}

void PlanAgreement::report_loss(double loss) {
  if (std::isfinite(loss) && loss >= 0) {
    loss_ = loss_ < 0 ? loss : loss_ + kNewLoss * (loss - loss_);
  }
}

std::vector<std::int64_t> PlanAgreement::exchange(std::uint64_t step, bool measured) {
  open_ = Kind::kNone;
  if (std::exchange(digest_due_, false)) {
    open_ = Kind::kDigest;
    const auto digest = static_cast<std::int64_t>(replanner_.proposed_digest());
    return {digest, ~digest};  // MAX gives the largest digest and, inverted, the smallest
  }
  if (refused_ || !replanner_.wants_profile(step)) {
    return {};
  }
  open_ = Kind::kProfile;
  scheduler::StepProfile mine = recorder_.take();
  if (!measured) {
    mine = {};
    mine.ready_us.assign(plan()->tensors().size(), 0);
  } else if (const auto link = meter_.read()) {
    mine.latency_ns = link->latency_ns;
    mine.bytes_per_second = link->bytes_per_second;
  }
  if (measured) {
    mine.codec_costs = codec_costs_;
  }
  mine.losses.assign(losses(), scheduler::StepProfile::kUnknown);
  if (!mine.losses.empty() && measured && loss_ >= 0) {
    mine.losses[static_cast<std::size_t>(rank_)] = std::llround(std::min(loss_, kLargestLoss) * kLossUnit);
  }
  mine.objection = static_cast<std::int64_t>(replanner_.objection());
  return scheduler::to_max_vector(mine);
}

void PlanAgreement::decide(std::uint64_t step, const std::vector<std::int64_t>& reduced) {
  const Kind kind = std::exchange(open_, Kind::kNone);
  if (kind == Kind::kDigest) {
    decide_digest(step, reduced);
  }
  if (kind != Kind::kProfile) {
    return;
  }
  digest_due_ = true;
  auto profile = scheduler::from_max_vector(reduced, plan()->tensors().size(), losses());
  if (profile) {
    agreed_ = std::move(*profile);
  } else {
    refuse(profile.status().to_string());
  }
}

void PlanAgreement::decide_digest(std::uint64_t step, const std::vector<std::int64_t>& reduced) {
  const bool same = reduced[0] == ~reduced[1];
  if (same && !replanner_.proposal_open()) {
    return;
  }
  if (same) {
    replanner_.adopted(step);
    last_tensor_ = plan()->version() == first_version_ ? last_with_elements(*plan(), order_) : next_last_tensor_;
    recorder_.forget();
    deps_.stats.counter("streams.plans_adopted").add();
    gauges_.plan_version.set(static_cast<std::int64_t>(plan()->version()));
  } else {
    replanner_.rejected(step);
    deps_.stats.counter("streams.plans_rejected").add();
  }
  report();
}

void PlanAgreement::consider(std::uint64_t step) {
  if (!agreed_) {
    return;
  }
  const scheduler::StepProfile profile = *std::exchange(agreed_, std::nullopt);
  deps_.stats.counter("streams.profiles").add();
  note_link(profile);
  if (replanner_.consider(step, profile)) {
    next_last_tensor_ = last_of(profile);
  }
  if (profile.objection == 0) {
    const scheduler::DecisionRecord& record = replanner_.log().back();
    gauges_.link_latency_ns.set(profile.latency_ns);
    gauges_.link_bytes_per_second.set(profile.bytes_per_second);
    gauges_.measured_step_us.set(record.measured_us);
    gauges_.predicted_step_us.set(record.predicted_us);
  }
  report();
}

// All ranks have the same profile, so one of them says it.
void PlanAgreement::note_link(const scheduler::StepProfile& profile) {
  unknown_links_ = profile.knows_link() ? 0 : unknown_links_ + 1;
  if (!by_link_ || rank_ != 0 || deps_.log == nullptr || unknown_links_ < kUnknownLinks ||
      std::exchange(logged_link_, true)) {
    return;
  }
  const bool compresses = std::ranges::any_of(
      plan()->tensors(), [](const scheduler::PlannedTensor& tensor) { return tensor.decision.format().compressed(); });
  deps_.log->info("stream '" + name_ + "' keeps plan " + std::to_string(plan()->version()) +
                  ", because its transfers are too few or too short to measure the link" +
                  (compresses ? "" : "; if steps wait for gradients, name a codec, such as int8"));
}

void PlanAgreement::restart() {
  open_ = Kind::kNone;
  digest_due_ = false;
  agreed_.reset();
  refused_ = false;
  replanner_.restart();
  // Measurements from before a pause would count as one long step.
  recorder_.interrupted();
  meter_.reset();
  last_tensor_ = last_with_elements(*plan(), order_);
  gauges_.plan_version.set(static_cast<std::int64_t>(plan()->version()));
}

// Returns the last of equal ones, so that all ranks decide alike.
int PlanAgreement::last_of(const scheduler::StepProfile& profile) const {
  int last = -1;
  for (int i = 0; i < static_cast<int>(profile.ready_us.size()); ++i) {
    const bool later =
        last < 0 || profile.ready_us[static_cast<std::size_t>(i)] >= profile.ready_us[static_cast<std::size_t>(last)];
    if (later && !plan()->partitions_of(i).empty()) {
      last = i;
    }
  }
  return last;
}

void PlanAgreement::refuse(const std::string& why) {
  refused_ = true;
  if (deps_.log != nullptr && !std::exchange(logged_refused_, true)) {
    deps_.log->warn("stream '" + name_ + "' keeps its plan: " + why);
  }
}

void PlanAgreement::report() {
  const scheduler::DecisionRecord& record = replanner_.log().back();
  const bool changed = record.reason == scheduler::Reason::kAdopted;
  decisions_.add(record, replanner_.policy_log());
  std::string text = "stream '" + name_ + "', " + scheduler::to_string(record);
  if (!replanner_.policy_log().empty()) {
    text += "; " + replanner_.policy_log();
  }
  if (deps_.trace.on()) {
    deps_.trace.event(text);
  }
  if (deps_.log == nullptr) {
    return;
  }
  const LogLevel level = changed ? LogLevel::kInfo : LogLevel::kDebug;
  if (deps_.log->enabled(level)) {
    deps_.log->write(level, text);
  }
  if (!replanner_.frozen_because().empty() && !std::exchange(logged_frozen_, true)) {
    deps_.log->warn("stream '" + name_ + "' keeps plan " + std::to_string(plan()->version()) +
                    " from here on: " + replanner_.frozen_because());
  }
}

}  // namespace sirtaki::engine
