#include "runtime/engine/stream/plan/link_probe.h"

#include <algorithm>
#include <span>
#include <utility>

#include "runtime/engine/common/tags.h"
#include "runtime/engine/stream/plan/stream_plan.h"
#include "scheduler/plan/wire_cost.h"

namespace sirtaki::engine {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::size_t kSmallNumbers = (32 << 10) / sizeof(std::int64_t);
constexpr std::size_t kLargeNumbers = (1 << 20) / sizeof(std::int64_t);
constexpr std::size_t kLatencyExchanges = 3;
// The burst of a shaper is often 128 KB; in ten small exchanges among 4 ranks 480 KB leave each rank.
constexpr std::size_t kSmallExchanges = 10;
constexpr std::size_t kLargeExchanges = 3;
constexpr std::size_t kFewest = 2;
// Small exchanges end after this time; large ones follow only where the small ones were short.
constexpr Duration kEnough = milliseconds(60);
constexpr Duration kFast = milliseconds(20);
constexpr std::int64_t kLeastPart = 8;  // bytes and latency take at least this fraction of the time each

std::int64_t microseconds_of(Duration duration) {
  return std::chrono::duration_cast<microseconds>(duration).count();
}

}  // namespace

LinkProbe::LinkProbe(StreamId stream, Loop& loop, net::Collectives& net, const scheduler::CodecCosts& costs)
    : stream_(stream), loop_(loop), net_(net), costs_(costs) {}

void LinkProbe::run(MoveFunction<void(Result<scheduler::StepProfile>)> done) {
  done_ = std::move(done);
  exchange();
}

// The first number of every exchange but the last is the time since the ranks met.
std::vector<std::int64_t> LinkProbe::values_of_part() const {
  if (part_ == Part::kAgree) {
    return scheduler::to_max_vector(reading());
  }
  std::vector<std::int64_t> values(part_ == Part::kSmall   ? kSmallNumbers
                                   : part_ == Part::kLarge ? kLargeNumbers
                                                           : fewest_numbers());
  values.front() = part_ == Part::kMeet ? 0 : microseconds_of(loop_.now() - met_);
  return values;
}

// An allreduce of fewer numbers than ranks goes in one exchange; so does that of a share among fewer owners, if hosts
// sum first.
std::size_t LinkProbe::fewest_numbers() const {
  const net::HostGroups* groups = net_.host_groups();
  return static_cast<std::size_t>(groups == nullptr ? net_.size() : groups->hosts.count() * groups->hosts.shares());
}

void LinkProbe::exchange() {
  values_ = std::make_shared<std::vector<std::int64_t>>(values_of_part());
  net::CollectiveArgs args;
  args.kind = OpKind::kAllreduce;
  // The last attempt number, so that giving up the first steps cannot touch these tags.
  args.tag = stream_tag(stream_, kStreamAttempts - 1, kExchangePosition, exchanges_++);
  args.dtype = DType::kI64;
  args.op = ReduceOp::kMax;
  args.exchange_bytes = 0;  // two exchanges, whatever the size
  args.out = std::as_writable_bytes(std::span(*values_));
  args.in = args.out;
  began_ = loop_.now();
  net_.start(std::move(args), [self = self_, held = values_](const Status& status) {
    if (*self != nullptr) {
      (*self)->on_exchanged(status);
    }
  });
}

void LinkProbe::on_exchanged(const Status& status) {
  if (!status.ok()) {
    std::exchange(done_, {})(status);
    return;
  }
  if (part_ == Part::kAgree) {
    std::exchange(done_, {})(scheduler::from_max_vector(*values_, 0));
    return;
  }
  times_.push_back(loop_.now() - began_);
  const std::int64_t elapsed_us = values_->front();
  if (part_is_over(elapsed_us)) {
    if (part_ == Part::kMeet) {
      met_ = loop_.now();
    } else if (part_ == Part::kLatency) {
      latency_ = *std::ranges::min_element(times_);
    } else {
      const Duration time = std::min(times_.back(), times_.at(times_.size() - kFewest));
      const Duration for_bytes = std::max<Duration>({time - latency_, time / kLeastPart, Duration(1)});
      bytes_per_second_ = std::max<std::int64_t>(
          static_cast<std::int64_t>(link_bytes(values_->size()) / std::chrono::duration<double>(for_bytes).count()), 1);
    }
    part_ = part_after(elapsed_us);
    times_.clear();
  }
  exchange();
}

bool LinkProbe::part_is_over(std::int64_t elapsed_us) const {
  switch (part_) {
    case Part::kLatency:
      return times_.size() == kLatencyExchanges;
    case Part::kSmall:
      return times_.size() == kSmallExchanges || (times_.size() >= kFewest && elapsed_us >= microseconds_of(kEnough));
    case Part::kLarge:
      return times_.size() == kLargeExchanges;
    case Part::kMeet:
    case Part::kAgree:
      break;
  }
  return true;
}

LinkProbe::Part LinkProbe::part_after(std::int64_t elapsed_us) const {
  switch (part_) {
    case Part::kMeet:
      return Part::kLatency;
    case Part::kLatency:
      return Part::kSmall;
    case Part::kSmall:
      return elapsed_us < microseconds_of(kFast) ? Part::kLarge : Part::kAgree;
    case Part::kLarge:
    case Part::kAgree:
      break;
  }
  return Part::kAgree;
}

double LinkProbe::link_bytes(std::size_t numbers) const {
  return scheduler::link_bytes(static_cast<std::int64_t>(numbers * sizeof(std::int64_t)), exchanging_ranks(net_));
}

scheduler::StepProfile LinkProbe::reading() const {
  scheduler::StepProfile profile;
  const double seconds = link_bytes(fewest_numbers()) / static_cast<double>(bytes_per_second_);
  const auto for_bytes = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  profile.latency_ns = std::max(latency_ - for_bytes, latency_ / kLeastPart).count() / 2;
  profile.bytes_per_second = bytes_per_second_;
  profile.codec_costs = costs_;
  return profile;
}

}  // namespace sirtaki::engine
