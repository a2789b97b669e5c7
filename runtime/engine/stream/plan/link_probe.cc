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

constexpr std::size_t kLargeNumbers = (1 << 20) / sizeof(std::int64_t);
constexpr std::size_t kLatencyExchanges = 3;
// The burst of a shaper is often 128 KB; in ten small exchanges among 4 ranks 480 KB leave each rank.
constexpr std::size_t kSmallExchanges = 10;
// Exchanges get shorter while the window of TCP grows; at most so many wait for that. It matters little where bytes
// take several times the latency.
constexpr std::size_t kMostLargeExchanges = 8;
constexpr std::int64_t kNear = 3;
constexpr std::size_t kFewest = 2;
// Small exchanges end after this time. Where they were short, large ones follow; where their latency hides their bytes,
// larger ones.
constexpr Duration kEnough = milliseconds(60);
constexpr Duration kFast = milliseconds(20);
constexpr std::size_t kGrowth = 4;
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
  const bool bytes = part_ == Part::kSmall || part_ == Part::kLarge;
  std::vector<std::int64_t> values(bytes ? numbers_ : fewest_numbers());
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
  begins_us_.push_back(elapsed_us);
  if (part_is_over(elapsed_us)) {
    if (part_ == Part::kMeet) {
      met_ = loop_.now();
    } else if (part_ == Part::kLatency) {
      latency_ = *std::ranges::min_element(times_);
      agreed_latency_us_ = std::min(agreed_us(1), agreed_us(2));
    } else {
      const Duration time = std::min(times_.back(), times_.at(times_.size() - kFewest));
      const Duration for_bytes = std::max<Duration>({time - latency_, time / kLeastPart, Duration(1)});
      bytes_per_second_ = std::max<std::int64_t>(
          static_cast<std::int64_t>(link_bytes(values_->size()) / std::chrono::duration<double>(for_bytes).count()), 1);
    }
    next_part(elapsed_us);
    times_.clear();
    begins_us_.clear();
  }
  exchange();
}

bool LinkProbe::part_is_over(std::int64_t elapsed_us) const {
  switch (part_) {
    case Part::kLatency:
      return times_.size() == kLatencyExchanges;
    case Part::kSmall:
      return times_.size() == kSmallExchanges ||
             (times_.size() >= kFewest && elapsed_us - begins_us_.front() >= microseconds_of(kEnough) &&
              (agreed_us(1) >= kNear * agreed_latency_us_ || steady()));
    case Part::kLarge:
      return times_.size() == kMostLargeExchanges || steady();
    case Part::kMeet:
    case Part::kAgree:
      break;
  }
  return true;
}

bool LinkProbe::steady() const {
  return times_.size() > 2 && agreed_us(1) >= agreed_us(2) - agreed_us(2) / 8;
}

// The time of the last exchange is not known to other ranks yet.
std::int64_t LinkProbe::agreed_us(std::size_t back) const {
  return begins_us_.at(begins_us_.size() - back) - begins_us_.at(begins_us_.size() - back - 1);
}

void LinkProbe::next_part(std::int64_t elapsed_us) {
  if (part_ == Part::kMeet) {
    part_ = Part::kLatency;
  } else if (part_ == Part::kLatency) {
    part_ = Part::kSmall;
  } else if (part_ == Part::kSmall && elapsed_us - begins_us_.front() < microseconds_of(kFast)) {
    part_ = Part::kLarge;
    numbers_ = kLargeNumbers;
  } else if (numbers_ < kLargeNumbers && agreed_us(1) < agreed_latency_us_ + agreed_latency_us_ / 2) {
    part_ = Part::kLarge;
    numbers_ = std::min(numbers_ * kGrowth, kLargeNumbers);
  } else {
    part_ = Part::kAgree;
  }
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
