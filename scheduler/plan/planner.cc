#include "scheduler/plan/planner.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "runtime/base/check.h"
#include "scheduler/plan/arith.h"
#include "scheduler/plan/pieces.h"
#include "scheduler/plan/planner_layout.h"
#include "scheduler/plan/step_model.h"
#include "scheduler/plan/wire_cost.h"

namespace sirtaki::scheduler {
namespace {

constexpr std::int64_t kMinPartitionBytes = 64 << 10;
constexpr std::int64_t kMaxPartitionBytes = 4 << 20;
// The planner handles this many partitions within a millisecond.
constexpr std::int64_t kManyPartitions = 4096;
// Every partition costs memory on every rank.
constexpr std::int64_t kMostPartitions = 1 << 18;
// Bytes in flight keep the link busy while the process is not scheduled for this long.
constexpr std::int64_t kHiccupNs = 5'000'000;
constexpr std::int64_t kForEver = std::numeric_limits<std::int64_t>::max();
// Candidates whose predicted step times differ by less tie, and the one with fewer partitions wins.
constexpr std::int64_t kTiePermille = 5;

Status check_profile(const std::vector<PlannedTensor>& tensors, const StepProfile& profile,
                     const PlannerOptions& options) {
  if (profile.ready_us.size() != tensors.size() || profile.need_us.size() != tensors.size()) {
    return invalid_argument("a profile of " + std::to_string(profile.ready_us.size()) + " tensors does not fit " +
                            std::to_string(tensors.size()));
  }
  if (!profile.knows_link()) {
    return invalid_argument("the profile does not know latency and bandwidth of the link yet");
  }
  if (options.ranks < 1 || options.credit_limit_bytes < 1) {
    return invalid_argument("a plan for " + std::to_string(options.ranks) + " ranks with a credit of " +
                            std::to_string(options.credit_limit_bytes) + " bytes; both must be 1 or more");
  }
  return {};
}

Status check_layout(const std::vector<PlannedTensor>& tensors, const LayoutOptions& limits) {
  SRT_TRY(check_layout_options(limits));
  Wide bytes = 0;
  for (const PlannedTensor& tensor : tensors) {
    bytes += Wide{std::max<std::int64_t>(tensor.numel, 0)} * static_cast<std::int64_t>(dtype_size(tensor.dtype));
  }
  if (bytes / limits.partition_bytes > kMostPartitions) {
    return invalid_argument("the tensors make more than " + std::to_string(kMostPartitions) +
                            " partitions; raise partition_bytes");
  }
  return {};
}

std::int64_t credit_in_force(const Plan& plan, const PlannerOptions& options) {
  return plan.credit_bytes() == 0 ? options.credit_limit_bytes
                                  : std::min(plan.credit_bytes(), options.credit_limit_bytes);
}

// A layout with its order and its prediction.
struct Candidate {
  Grouping grouping;
  std::vector<std::uint32_t> order;  // group indices
  std::int64_t credit_bytes = 0;
  std::int64_t exchange_bytes = 0;
  Prediction prediction;
  std::vector<std::int64_t> done;  // times, one for each place in the order
};

// Preemptive earliest-need-first: when the link is free, the most urgent ready group goes next.
std::vector<std::uint32_t> order_of(const std::vector<Job>& jobs, const StepModel& model) {
  std::vector<std::uint32_t> by_ready(jobs.size());
  std::iota(by_ready.begin(), by_ready.end(), 0U);
  std::stable_sort(by_ready.begin(), by_ready.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return jobs[a].ready < jobs[b].ready; });
  using Entry = std::tuple<std::int64_t, std::size_t, std::uint32_t>;  // need, place by readiness, group
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> waiting;
  std::vector<std::uint32_t> order;
  order.reserve(jobs.size());
  std::int64_t now = 0;
  for (std::size_t next = 0; order.size() < jobs.size();) {
    if (waiting.empty()) {
      now = std::max(now, jobs[by_ready[next]].ready);
    }
    for (; next < by_ready.size() && jobs[by_ready[next]].ready <= now; ++next) {
      waiting.emplace(jobs[by_ready[next]].need, next, by_ready[next]);
    }
    order.push_back(std::get<2>(waiting.top()));
    waiting.pop();
    now += model.occupancy(jobs[order.back()]) + model.handling();
  }
  return order;
}

Candidate make_candidate(const LayoutInputs& inputs, const GroupingRule& rule, std::int64_t credit_bytes) {
  Candidate candidate;
  candidate.grouping = group_tensors(inputs, rule);
  candidate.order = order_of(candidate.grouping.jobs, inputs.model);
  candidate.credit_bytes = credit_bytes;
  std::vector<Job> jobs;
  jobs.reserve(candidate.order.size());
  for (const std::uint32_t group : candidate.order) {
    jobs.push_back(candidate.grouping.jobs[group]);
  }
  candidate.prediction = inputs.model.run(jobs, credit_bytes, &candidate.done);
  return candidate;
}

std::vector<TensorTiming> timings_in(const Candidate& candidate, const LayoutInputs& inputs) {
  const auto job = [&](std::size_t place) -> const Job& { return candidate.grouping.jobs[candidate.order[place]]; };
  std::int64_t largest = 0;
  for (std::size_t place = 0; place < candidate.order.size(); ++place) {
    largest = std::max(largest, candidate.done[place] - job(place).need);
  }
  std::vector<TensorTiming> timings(inputs.tensors.size(), TensorTiming{kForEver, kForEver});
  for (std::size_t place = 0; place < candidate.order.size(); ++place) {
    const Grouping::Group& group = candidate.grouping.groups[candidate.order[place]];
    const std::int64_t exchanges = inputs.model.exchanges(job(place));
    const std::int64_t taken = inputs.model.occupancy(job(place)) + exchanges * inputs.model.latency() / 2;
    for (std::uint32_t i = group.begin; i < group.end; ++i) {
      TensorTiming& timing = timings[static_cast<std::size_t>(candidate.grouping.slices[i].tensor)];
      timing.start = std::min(timing.start, candidate.done[place] - taken);
      timing.slack = std::min(timing.slack, largest - (candidate.done[place] - job(place).need));
    }
  }
  return timings;
}

// Among candidates as good as the best, the one with the fewest partitions costs the least overhead.
Candidate choose(std::vector<Candidate> candidates) {
  const auto step = [](const Candidate& candidate) { return candidate.prediction.step_us; };
  const std::int64_t best = step(*std::ranges::min_element(candidates, {}, step));
  std::erase_if(candidates, [&](const Candidate& candidate) {
    return Wide{step(candidate)} * 1000 > Wide{best} * (1000 + kTiePermille);
  });
  return std::move(*std::ranges::min_element(candidates, {}, [](const Candidate& c) { return c.order.size(); }));
}

// A few sizes around the one that fits the link. Larger ones are candidates only if all tensors are needed at once:
// they put more bytes in flight, and on a real network those share the link with urgent bytes instead of queuing behind
// them.
std::vector<std::int64_t> partition_sizes(const LayoutInputs& inputs, const StepProfile& profile,
                                          const PlannerOptions& options, std::int64_t exchange_bytes) {
  const std::int64_t fitting = sizes_for_link(profile, options).partition_bytes;
  const std::int64_t most = options.limits.partition_bytes;
  const std::int64_t least =
      std::min(most, std::max(std::min(kMinPartitionBytes, fitting), inputs.total_payload / kManyPartitions));
  std::vector<std::int64_t> wanted = {2 * fitting, fitting, fitting / 2};
  if (profile.distant()) {
    wanted.push_back(exchange_bytes);
  }
  if (inputs.needed_at_once()) {
    wanted.insert(wanted.end(), {most, most / 4});
  }
  std::vector<std::int64_t> sizes;
  for (const std::int64_t size : wanted) {
    sizes.push_back(std::clamp(size, least, most));
  }
  std::ranges::sort(sizes, std::greater<>());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

// Returns the bytes that travel during a latency.
Wide in_transit(const StepProfile& profile) {
  return Wide{profile.latency_ns} * profile.bytes_per_second / kNsPerSecond;
}

std::int64_t credit_for(std::int64_t partition_bytes, const StepProfile& profile, const PlannerOptions& options) {
  const Wide both_ways = Wide{2} * options.ranks * profile.latency_ns * profile.bytes_per_second / kNsPerSecond;
  const Wide hiccup =
      Wide{kHiccupNs} * profile.bytes_per_second / kNsPerSecond * options.ranks / (2 * std::max(options.ranks - 1, 1));
  const Wide wanted = std::max(std::max(both_ways, hiccup), Wide{2} * partition_bytes);
  return static_cast<std::int64_t>(std::min<Wide>(wanted, options.credit_limit_bytes));
}

void add_candidates(const std::vector<PlannedTensor>& tensors, const StepProfile& profile,
                    const PlannerOptions& options, std::int64_t exchange_bytes, std::vector<Candidate>& candidates) {
  const StepModel model(profile, options, exchange_bytes);
  const LayoutInputs inputs(tensors, options.limits, model);
  const auto add = [&](const GroupingRule& rule) {
    candidates.push_back(make_candidate(inputs, rule, credit_for(rule.partition_bytes, profile, options)));
    candidates.back().exchange_bytes = exchange_bytes;
  };
  for (const std::int64_t bytes : partition_sizes(inputs, profile, options, exchange_bytes)) {
    GroupingRule rule{.partition_bytes = bytes, .patient = false, .timings = {}};
    add(rule);
    if (!candidates.back().grouping.same_without_patience) {
      rule.patient = true;
      if (!inputs.needed_at_once()) {
        rule.timings = timings_in(candidates.back(), inputs);
      }
      add(rule);
    }
  }
}

// Returns the limits of one exchange of which a plan has one. That of the options is for hosts of a room, where each
// rank adds up all of the data in hardly less time than a latency. Between distant hosts, bytes that one sum sends to
// save a latency may be bytes that others wait for, so neither limit is always better.
std::vector<std::int64_t> exchange_limits(const StepProfile& profile, const PlannerOptions& options) {
  if (!profile.knows_link()) {
    return {kAnySize};
  }
  const LinkFacts link{profile.latency_ns, profile.bytes_per_second};
  const std::int64_t most = most_in_one_exchange(options.ranks, options.ranks_per_host, link);
  const auto larger = static_cast<std::int64_t>(std::min<Wide>(most, in_transit(profile)));
  const std::int64_t usual = std::min(most, options.exchange_bytes);
  if (!profile.distant() || options.exchange_bytes == 0 || larger <= usual) {
    return {usual};
  }
  return {usual, larger};
}

}  // namespace

Sizes sizes_for_link(const StepProfile& profile, const PlannerOptions& options) {
  if (!profile.knows_link() || options.ranks < 2) {
    return {options.limits.partition_bytes, options.credit_limit_bytes};
  }
  const Wide wanted = 9 * in_transit(profile) * options.ranks / (options.ranks - 1);
  const auto size = static_cast<std::int64_t>(std::clamp<Wide>(wanted, kMinPartitionBytes, kMaxPartitionBytes));
  const std::int64_t partition = std::min(size, options.limits.partition_bytes);
  return {partition, credit_for(partition, profile, options)};
}

std::int64_t usual_exchange(const StepProfile& profile, const PlannerOptions& options) {
  return exchange_limits(profile, options).front();
}

Result<std::shared_ptr<const Plan>> plan_schedule(const std::vector<PlannedTensor>& tensors, const StepProfile& profile,
                                                  const PlannerOptions& options, std::uint64_t version) {
  SRT_TRY(check_tensors(tensors));
  SRT_TRY(check_profile(tensors, profile, options));
  SRT_TRY(check_layout(tensors, options.limits));
  std::vector<Candidate> candidates;
  for (const std::int64_t exchange_bytes : exchange_limits(profile, options)) {
    add_candidates(tensors, profile, options, exchange_bytes, candidates);
  }
  const Candidate best = choose(std::move(candidates));
  PlanParts parts;
  parts.tensors = tensors;
  parts.alignment = options.limits.alignment;
  parts.credit_bytes = best.credit_bytes;
  parts.exchange_bytes = best.exchange_bytes;
  parts.version = version;
  parts.partitions.reserve(best.order.size());
  for (const std::uint32_t index : best.order) {
    const Grouping::Group& group = best.grouping.groups[index];
    const std::span<const Slice> slices(best.grouping.slices.data() + group.begin, group.end - group.begin);
    parts.partitions.push_back(make_partition(tensors, slices));
  }
  return Plan::from_partitions(std::move(parts));
}

Result<std::shared_ptr<const Plan>> plan_in_order(const std::vector<PlannedTensor>& tensors,
                                                  const std::vector<int>& order, const StepProfile& link,
                                                  const PlannerOptions& options, std::uint64_t version) {
  const std::vector<std::int64_t> limits = exchange_limits(link, options);
  SRT_ASSIGN(auto best, Plan::build(tensors, order, options.limits, version, limits.front()));
  if (limits.size() > 1) {
    SRT_ASSIGN(auto other, Plan::build(tensors, order, options.limits, version, limits.back()));
    const StepProfile profile = all_at_once(link, tensors.size());
    if (predict(*other, profile, options).step_us < predict(*best, profile, options).step_us) {
      best = std::move(other);
    }
  }
  return best;
}

Prediction predict_tensors(const std::vector<PlannedTensor>& tensors, const StepProfile& profile,
                           const PlannerOptions& options) {
  SRT_CHECK(check_profile(tensors, profile, options).ok());
  Prediction best;
  best.step_us = kForEver;
  const std::int64_t fitting = sizes_for_link(profile, options).partition_bytes;
  for (const std::int64_t exchange_bytes : exchange_limits(profile, options)) {
    const StepModel model(profile, options, exchange_bytes);
    const LayoutInputs inputs(tensors, options.limits, model);
    const auto with = [&](std::int64_t partition_bytes) {
      const GroupingRule rule{.partition_bytes = partition_bytes, .patient = false, .timings = {}};
      const Candidate made = make_candidate(inputs, rule, credit_for(partition_bytes, profile, options));
      best = std::min(best, made.prediction, [](const auto& a, const auto& b) { return a.step_us < b.step_us; });
    };
    with(fitting);
    if (profile.distant() && std::max(exchange_bytes, kMinPartitionBytes) < fitting) {
      with(std::max(exchange_bytes, kMinPartitionBytes));
    }
  }
  return best;
}

Prediction predict(const Plan& plan, const StepProfile& profile, const PlannerOptions& options) {
  SRT_CHECK(check_profile(plan.tensors(), profile, options).ok());
  const StepModel model(profile, options, plan.exchange_bytes());
  std::vector<Job> jobs;
  jobs.reserve(plan.partitions().size());
  for (const Partition& partition : plan.partitions()) {
    Job job;
    job.need = model.forward_end();
    for (const Slice& slice : partition.slices) {
      job.add(plan.tensors()[static_cast<std::size_t>(slice.tensor)], slice.numel, profile);
      job.ready = std::max(job.ready, model.ready(slice.tensor));
      job.need = std::min(job.need, model.need(slice.tensor));
    }
    jobs.push_back(job);
  }
  return model.run(jobs, credit_in_force(plan, options));
}

std::int64_t lower_bound_us(const std::vector<PlannedTensor>& tensors, const StepProfile& profile,
                            const PlannerOptions& options) {
  SRT_CHECK(check_profile(tensors, profile, options).ok());
  const StepModel model(profile, options);
  std::vector<int> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return model.ready(a) < model.ready(b); });
  using Entry = std::tuple<std::int64_t, int, std::int64_t>;  // need, tensor, remaining time
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
        waiting.emplace(model.need(order[next]), order[next], model.occupancy(tensor.wire_bytes_of(tensor.numel)));
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
      lateness = std::max(lateness, now + model.latency() / 2 - need);
    }
  }
  return model.step_us(lateness);
}

}  // namespace sirtaki::scheduler
