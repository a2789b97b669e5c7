#include "scheduler/step_model.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "scheduler/arith.h"
#include "scheduler/credit.h"

namespace sirtaki::scheduler {
namespace {

constexpr std::int64_t kNsPerUs = 1000;
constexpr std::int64_t kNsPerSecond = 1'000'000'000;
// About 70 minutes for one transfer, 70 years for a sum of them.
constexpr std::int64_t kLongestTransfer = std::int64_t{1} << 42;
// What of a message's latency is work on the host, not distance.
constexpr std::int64_t kMostHandling = 100'000;
constexpr std::int64_t kEndOfTime = std::int64_t{1} << 61;

std::int64_t after(std::int64_t time, std::int64_t duration) {
  return std::min(time + duration, kEndOfTime);
}

std::int64_t to_us(std::int64_t ns) {
  return (ns + kNsPerUs - 1) / kNsPerUs;
}

}  // namespace

StepModel::StepModel(const StepProfile& profile, const PlannerOptions& options)
    : profile_(profile),
      options_(options),
      backward_end_(profile.backward_us * kNsPerUs),
      forward_end_(backward_end_ + profile.forward_us * kNsPerUs),
      latency_(options.ranks > 1 ? 2 * profile.latency_ns : 0),
      handling_(std::min(latency_ / 4, kMostHandling)) {}

std::int64_t StepModel::ready(int tensor) const {
  return profile_.ready_us[static_cast<std::size_t>(tensor)] * kNsPerUs;
}

std::int64_t StepModel::need(int tensor) const {
  if (!options_.forward) {
    return backward_end_;
  }
  const std::int64_t need = profile_.need_us[static_cast<std::size_t>(tensor)];
  return need == StepProfile::kUnknown ? forward_end_ : std::min(backward_end_ + need * kNsPerUs, forward_end_);
}

std::int64_t StepModel::occupancy(std::int64_t payload) const {
  const Wide ns = Wide{2} * (options_.ranks - 1) * payload * kNsPerSecond /
                  (Wide{options_.ranks} * std::max<std::int64_t>(profile_.bytes_per_second, 1));
  return static_cast<std::int64_t>(std::min<Wide>(ns, kLongestTransfer));
}

std::int64_t StepModel::payload(const PlannedTensor& tensor, int index, std::int64_t numel) const {
  if (options_.wire_bytes.empty()) {
    return numel * static_cast<std::int64_t>(dtype_size(tensor.dtype));
  }
  const Wide share = Wide{options_.wire_bytes[static_cast<std::size_t>(index)]} * numel;
  return static_cast<std::int64_t>((share + tensor.numel - 1) / tensor.numel);
}

Prediction StepModel::run(std::span<const Job> jobs, std::int64_t credit_bytes,
                          std::vector<std::int64_t>* done_times) const {
  Credit credit(credit_bytes);
  std::deque<std::pair<std::int64_t, std::int64_t>> in_flight;  // (done, payload), in the order of both
  std::int64_t start = 0;
  std::int64_t link_free = 0;
  std::int64_t lateness = 0;
  std::int64_t done = 0;
  std::int64_t all_ready = 0;
  for (const Job& job : jobs) {
    all_ready = std::max(all_ready, job.ready);
  }
  for (const Job& job : jobs) {
    start = std::max(start, job.ready == all_ready ? std::max(job.ready, backward_end_) : job.ready);
    while (!in_flight.empty() && (in_flight.front().first <= start || !credit.fits(job.payload))) {
      start = std::max(start, in_flight.front().first);
      credit.give_back(in_flight.front().second);
      in_flight.pop_front();
    }
    credit.take(job.payload);
    link_free = after(std::max(link_free, start), occupancy(job.payload) + handling_);
    done = after(link_free, latency_);
    in_flight.emplace_back(done, job.payload);
    lateness = std::max(lateness, done - job.need);
    if (done_times != nullptr) {
      done_times->push_back(done);
    }
  }
  return {step_us(lateness), to_us(lateness), to_us(done)};
}

std::int64_t StepModel::step_us(std::int64_t lateness) const {
  return to_us(after(forward_end_, std::max<std::int64_t>(lateness, 0)));
}

}  // namespace sirtaki::scheduler
