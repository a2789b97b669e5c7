#include "scheduler/planner.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <queue>
#include <string>
#include <tuple>
#include <utility>

#include "runtime/base/check.h"
#include "scheduler/planner_layout.h"
#include "scheduler/step_model.h"

namespace sirtaki::scheduler {
namespace {

constexpr std::int64_t kMinPartitionBytes = 64 << 10;
constexpr std::int64_t kMaxPartitionBytes = 4 << 20;
// So many partitions are planned within a millisecond.
constexpr std::int64_t kManyPartitions = 4096;
// More would cost memory on every rank.
constexpr std::int64_t kMostPartitions = 1 << 18;
// Of the predicted step time, within which the candidate with fewer partitions wins.
constexpr std::int64_t kTiePermille = 2;

__extension__ using Wide = __int128;

Status check_inputs(const std::vector<PlannedTensor>& tensors, const StepProfile& profile,
                    const PlannerOptions& options) {
  if (profile.ready_us.size() != tensors.size() || profile.need_us.size() != tensors.size()) {
    return invalid_argument("a profile of " + std::to_string(profile.ready_us.size()) + " tensors does not fit " +
                            std::to_string(tensors.size()));
  }
  if (!options.wire_bytes.empty() && options.wire_bytes.size() != tensors.size()) {
    return invalid_argument(std::to_string(options.wire_bytes.size()) + " payload sizes for " +
                            std::to_string(tensors.size()) + " tensors");
  }
  if (!profile.knows_link()) {
    return invalid_argument("the profile does not know latency and bandwidth of the link yet");
  }
  if (options.ranks < 1 || options.credit_limit_bytes < 1) {
    return invalid_argument("a plan for " + std::to_string(options.ranks) + " ranks with a credit of " +
                            std::to_string(options.credit_limit_bytes) + " bytes; both must be 1 or more");
  }
  SRT_TRY(check_layout_options(options.limits));
  Wide bytes = 0;
  for (const PlannedTensor& tensor : tensors) {
    bytes += Wide{std::max<std::int64_t>(tensor.numel, 0)} * static_cast<std::int64_t>(dtype_size(tensor.dtype));
  }
  if (bytes / options.limits.partition_bytes > kMostPartitions) {
    return invalid_argument("the tensors make more than " + std::to_string(kMostPartitions) +
                            " partitions; raise partition_bytes");
  }
  return {};
}

std::int64_t credit_in_force(const Plan& plan, const PlannerOptions& options) {
  return plan.credit_bytes() == 0 ? options.credit_limit_bytes
                                  : std::min(plan.credit_bytes(), options.credit_limit_bytes);
}

// A layout with its order and what the model says of it.
struct Candidate {
  std::vector<Group> groups;  // in total order
  std::int64_t credit_bytes = 0;
  Prediction prediction;
};

// Preemptive earliest-need-first: whenever the link is free, the most urgent group that is ready goes next.
void put_in_order(std::vector<Group>& groups, const StepModel& model) {
  std::vector<std::size_t> by_ready(groups.size());
  std::iota(by_ready.begin(), by_ready.end(), std::size_t{0});
  std::stable_sort(by_ready.begin(), by_ready.end(),
                   [&](std::size_t a, std::size_t b) { return groups[a].job.ready < groups[b].job.ready; });
  using Entry = std::tuple<std::int64_t, std::size_t, std::size_t>;  // need, place by readiness, group
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> waiting;
  std::vector<Group> ordered;
  ordered.reserve(groups.size());
  std::int64_t now = 0;
  for (std::size_t next = 0; ordered.size() < groups.size();) {
    if (waiting.empty()) {
      now = std::max(now, groups[by_ready[next]].job.ready);
    }
    for (; next < by_ready.size() && groups[by_ready[next]].job.ready <= now; ++next) {
      waiting.emplace(groups[by_ready[next]].job.need, next, by_ready[next]);
    }
    Group& group = groups[std::get<2>(waiting.top())];
    waiting.pop();
    now += model.occupancy(group.job.payload);
    ordered.push_back(std::move(group));
  }
  groups = std::move(ordered);
}

Candidate make_candidate(const LayoutInputs& inputs, const GroupingRule& rule, const PlannerOptions& options) {
  Candidate candidate;
  candidate.groups = group_tensors(inputs, rule);
  put_in_order(candidate.groups, inputs.model);
  candidate.credit_bytes = rule.credit_bytes;
  std::vector<Job> jobs;
  jobs.reserve(candidate.groups.size());
  for (const Group& group : candidate.groups) {
    jobs.push_back(group.job);
  }
  candidate.prediction = inputs.model.run(jobs, std::min(candidate.credit_bytes, options.credit_limit_bytes));
  return candidate;
}

bool better(const Candidate& a, const Candidate& b) {
  const std::int64_t best = std::min(a.prediction.step_us, b.prediction.step_us);
  const std::int64_t difference = a.prediction.step_us - b.prediction.step_us;
  if (Wide{std::abs(difference)} * 1000 > Wide{best} * kTiePermille) {
    return difference < 0;
  }
  return a.groups.size() < b.groups.size();
}

std::int64_t credit_for(std::int64_t partition_bytes, const StepProfile& profile, const PlannerOptions& options) {
  const Wide in_transit = Wide{2} * options.ranks * profile.latency_ns * profile.bytes_per_second / 1'000'000'000;
  const Wide wanted = std::max<Wide>(2 * partition_bytes, in_transit);
  return static_cast<std::int64_t>(std::min<Wide>(wanted, options.credit_limit_bytes));
}

}  // namespace

Sizes sizes_for_link(const StepProfile& profile, const PlannerOptions& options) {
  if (!profile.knows_link() || options.ranks < 2) {
    return {options.limits.partition_bytes, options.credit_limit_bytes};
  }
  const Wide in_transit = Wide{profile.latency_ns} * profile.bytes_per_second / 1'000'000'000;
  const Wide wanted = 9 * in_transit * options.ranks / (options.ranks - 1);
  const auto size = static_cast<std::int64_t>(std::clamp<Wide>(wanted, kMinPartitionBytes, kMaxPartitionBytes));
  const std::int64_t partition = std::min(size, options.limits.partition_bytes);
  return {partition, credit_for(partition, profile, options)};
}

Result<std::shared_ptr<const Plan>> plan_schedule(const std::vector<PlannedTensor>& tensors, const StepProfile& profile,
                                                  const PlannerOptions& options, const Decision& decision,
                                                  std::uint64_t version) {
  SRT_TRY(check_tensors(tensors));
  SRT_TRY(check_inputs(tensors, profile, options));
  const StepModel model(profile, options);
  const LayoutInputs inputs(tensors, options.limits, model);
  const std::int64_t fitting = sizes_for_link(profile, options).partition_bytes;
  const std::int64_t least = std::max(std::min(kMinPartitionBytes, fitting), inputs.total_payload / kManyPartitions);
  std::optional<Candidate> best;
  std::vector<std::int64_t> tried;
  for (const std::int64_t size : {2 * fitting, fitting, fitting / 2, fitting / 4}) {
    const std::int64_t bytes = std::min(std::max(size, least), options.limits.partition_bytes);
    if (std::find(tried.begin(), tried.end(), bytes) != tried.end()) {
      continue;
    }
    tried.push_back(bytes);
    for (const bool patient : {true, false}) {
      Candidate candidate = make_candidate(
          inputs, {.partition_bytes = bytes, .credit_bytes = credit_for(bytes, profile, options), .patient = patient},
          options);
      if (!best || better(candidate, *best)) {
        best = std::move(candidate);
      }
    }
  }
  PlanParts parts;
  parts.tensors = tensors;
  parts.alignment = options.limits.alignment;
  parts.credit_bytes = best->credit_bytes;
  parts.version = version;
  for (Group& group : best->groups) {
    parts.partitions.push_back(std::move(group).to_partition(tensors, decision));
  }
  return Plan::from_partitions(std::move(parts));
}

Prediction predict(const Plan& plan, const StepProfile& profile, const PlannerOptions& options) {
  SRT_CHECK(check_inputs(plan.tensors(), profile, options));
  const StepModel model(profile, options);
  std::vector<Job> jobs;
  jobs.reserve(plan.partitions().size());
  for (const Partition& partition : plan.partitions()) {
    Job job;
    job.need = model.forward_end();
    for (const Slice& slice : partition.slices) {
      const PlannedTensor& tensor = plan.tensors()[static_cast<std::size_t>(slice.tensor)];
      job.payload += model.payload(tensor, slice.tensor, slice.numel);
      job.ready = std::max(job.ready, model.ready(slice.tensor));
      job.need = std::min(job.need, model.need(slice.tensor));
    }
    jobs.push_back(job);
  }
  return model.run(jobs, credit_in_force(plan, options));
}

std::int64_t lower_bound_us(const std::vector<PlannedTensor>& tensors, const StepProfile& profile,
                            const PlannerOptions& options) {
  SRT_CHECK(check_inputs(tensors, profile, options));
  const StepModel model(profile, options);
  std::vector<int> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return model.ready(a) < model.ready(b); });
  using Entry = std::tuple<std::int64_t, int, std::int64_t>;  // need, tensor, time it still takes
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> waiting;
  std::int64_t now = 0;
  std::int64_t lateness = 0;
  std::size_t next = 0;
  while (next < order.size() || !waiting.empty()) {
    if (waiting.empty()) {
      now = std::max(now, model.ready(order[next]));
    }
    for (; next < order.size() && model.ready(order[next]) <= now; ++next) {
      const PlannedTensor& tensor = tensors[static_cast<std::size_t>(order[next])];
      if (tensor.numel > 0) {
        waiting.emplace(model.need(order[next]), order[next],
                        model.occupancy(model.payload(tensor, order[next], tensor.numel)));
      }
    }
    if (waiting.empty()) {
      continue;
    }
    auto [need, tensor, left] = waiting.top();
    waiting.pop();
    const std::int64_t border = next < order.size() ? model.ready(order[next]) : now + left;
    const std::int64_t spent = std::min(left, border - now);
    now += spent;
    if (spent < left) {
      waiting.emplace(need, tensor, left - spent);
    } else {
      lateness = std::max(lateness, now + model.latency() - need);
    }
  }
  return model.step_us(lateness);
}

}  // namespace sirtaki::scheduler
