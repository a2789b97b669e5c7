#include "scheduler/plan/step_model.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "scheduler/plan/arith.h"
#include "scheduler/plan/credit.h"
#include "scheduler/plan/wire_cost.h"

namespace sirtaki::scheduler {
namespace {

constexpr std::int64_t kPsPerNs = 1000;
// About 70 minutes for one transfer, 70 years for a sum of them.
constexpr std::int64_t kLongestTransfer = std::int64_t{1} << 42;
// Part of the latency of a message that is work on the host, not distance.
constexpr std::int64_t kMostHandling = 100'000;
constexpr std::int64_t kEndOfTime = std::int64_t{1} << 61;

std::int64_t after(std::int64_t time, std::int64_t duration) {
  return std::min(time + duration, kEndOfTime);
}

std::int64_t to_us(std::int64_t ns) {
  return (ns + kNsPerUs - 1) / kNsPerUs;
}

// The exchanges of a half travel one behind the other; a half without exchanges takes no time.
struct Half {
  std::int64_t wire = 0;     // time on the link
  std::int64_t latency = 0;  // sum over its exchanges

  bool empty() const { return wire == 0 && latency == 0; }
};
struct Halves {
  Half first;
  Half second;
};

Halves halves_of(std::int64_t wire, std::int64_t exchanges, std::int64_t latency) {
  if (exchanges == 1) {
    return {{wire, latency}, {}};
  }
  const std::int64_t late = exchanges / 2;
  return {{wire / 2, (exchanges - late) * latency}, {wire / 2, late * latency}};
}

// Where the ranks of a host add up first, each share of a payload is an allreduce of its own among the hosts, whose
// limit follows from that of all ranks (runtime/net/collectives/hierarchy.cc).
std::int64_t most_by_host(std::int64_t among_all, const PlannerOptions& options) {
  const std::int64_t shares = options.ranks_per_host;
  const std::int64_t hosts = options.ranks;
  if (shares < 2 || hosts < 2 || among_all == 0) {
    return among_all;
  }
  const std::int64_t most = std::max(among_all, options.exchange_bytes);
  const Wide of_share =
      hosts == 2 ? Wide{most} : Wide{among_all} * (shares * shares * hosts - 2) / ((hosts - 2) * shares);
  return static_cast<std::int64_t>(std::min<Wide>({of_share, most, kLongestTransfer})) * shares;
}

// Most entries belong at the end.
template <class T>
void insert_by_time(std::deque<T>& entries, const T& entry) {
  entries.insert(std::ranges::upper_bound(entries, entry.at, {}, &T::at), entry);
}

// The thread that encodes and decodes, in the order of time.
class Worker {
 public:
  // Returns the end of work that begins at `at` or later. Calls of run() and decode_until() come in the order of time.
  std::int64_t run(std::int64_t at, std::int64_t duration) {
    if (duration == 0) {
      return at;
    }
    free_ = after(std::max(free_, at), duration);
    return free_;
  }
  // Keeps a job whose last byte arrives at `at`.
  void arrives(std::int64_t at, std::size_t job) { insert_by_time(arrived_, Arrival{at, job}); }
  // Decodes what has arrived by `time`; calls `done` with each job and the end of its work.
  template <class Done>
  void decode_until(std::int64_t time, std::span<const Job> jobs, const Done& done) {
    for (; !arrived_.empty() && arrived_.front().at <= time; arrived_.pop_front()) {
      const auto [at, job] = arrived_.front();
      done(job, run(at, jobs[job].decode));
    }
  }

 private:
  struct Arrival {
    std::int64_t at = 0;
    std::size_t job = 0;
  };

  std::int64_t free_ = 0;
  std::deque<Arrival> arrived_;
};

// The link as a queue of halves, and the credit, which returns after both halves of a partition.
class Line {
 public:
  explicit Line(std::int64_t credit) : credit_(credit) {}

  // Returns the earliest start of a partition, not before `at`, with the credit returned by then; nullopt: another half
  // has to end first.
  std::optional<std::int64_t> start(std::int64_t payload, std::int64_t at) {
    at = std::max(at, awaited_);
    while (!done_.empty() && (done_.front().at <= at || !credit_.fits(payload))) {
      if (!idle() && next_gather() <= done_.front().at && at < done_.front().at) {
        return std::nullopt;  // that half may return its credit before
      }
      at = awaited_ = std::max(at, done_.front().at);
      credit_.give_back(done_.front().payload);
      done_.pop_front();
    }
    return credit_.fits(payload) ? std::optional(at) : std::nullopt;
  }

  // reduce() runs the first half of a partition that start() admitted; gather() runs the second half of the partition
  // whose first half ended earliest.
  void reduce(std::size_t job, std::int64_t payload, std::int64_t start, const Halves& halves) {
    credit_.take(payload);
    insert_by_time(gathers_, Gather{serve(start, halves.first), job, payload, halves.second});
  }
  std::pair<std::size_t, std::int64_t> gather() {
    const Gather next = gathers_.front();
    gathers_.pop_front();
    const std::int64_t done = next.half.empty() ? next.at : serve(next.at, next.half);
    insert_by_time(done_, Return{done, next.payload});
    return {next.job, done};
  }

  bool idle() const { return gathers_.empty(); }
  std::int64_t next_gather() const { return gathers_.front().at; }

 private:
  struct Gather {
    std::int64_t at = 0;
    std::size_t job = 0;
    std::int64_t payload = 0;
    Half half;
  };
  struct Return {
    std::int64_t at = 0;
    std::int64_t payload = 0;
  };

  std::int64_t serve(std::int64_t at, const Half& half) {
    link_free_ = after(std::max(link_free_, at), half.wire);
    return after(link_free_, half.latency);
  }

  Credit credit_;
  std::int64_t link_free_ = 0;
  std::int64_t awaited_ = 0;    // the last return of credit that a partition waited for
  std::deque<Gather> gathers_;  // in the order of the ends of their first halves
  std::deque<Return> done_;     // credit that returns, in the order of time
};

}  // namespace

void Job::add(const PlannedTensor& tensor, std::int64_t numel, const StepProfile& profile) {
  payload += tensor.wire_bytes_of(numel);
  reduction = tensor.decision.reduction;
  if (tensor.decision.format().compressed()) {
    const CodecCost cost = profile.cost_of(tensor.decision.codec);
    encode = after(encode, static_cast<std::int64_t>(Wide{numel} * cost.encode_ps / kPsPerNs));
    decode = after(decode, static_cast<std::int64_t>(Wide{numel} * cost.decode_ps / kPsPerNs));
  }
}

StepModel::StepModel(const StepProfile& profile, const PlannerOptions& options)
    : StepModel(profile, options, usual_exchange(profile, options)) {}

// Without a limit in the plan, that of the options holds.
StepModel::StepModel(const StepProfile& profile, const PlannerOptions& options, std::int64_t exchange_bytes)
    : profile_(profile),
      options_(options),
      backward_end_(profile.backward_us * kNsPerUs),
      forward_end_(backward_end_ + profile.forward_us * kNsPerUs),
      exchange_latency_(options.ranks > 1 ? profile.latency_ns : 0),
      handling_(std::min(exchange_latency_ / 2, kMostHandling)),
      at_once_(exchange_bytes == kAnySize ? options.exchange_bytes : exchange_bytes),
      at_once_by_host_(most_by_host(at_once_, options)) {}

std::int64_t StepModel::exchanges(const Job& job) const {
  const bool at_once = consists_of_allreduces(job.reduction) && job.payload <= at_once_by_host_;
  return exchanges_of(job.reduction, options_.ranks) / (at_once ? 2 : 1);
}

// In one exchange every rank of a host sends the whole payload to every rank of the others, or each owner its share to
// the owners on the other hosts.
std::int64_t StepModel::occupancy(const Job& job) const {
  const std::int64_t wire = occupancy(job.payload);
  if (!consists_of_allreduces(job.reduction) || job.payload > at_once_by_host_) {
    return wire;
  }
  const Wide copies = job.payload <= at_once_ ? Wide{options_.ranks_per_host} * options_.ranks_per_host : Wide{1};
  return static_cast<std::int64_t>(std::min<Wide>(wire * copies * std::max(options_.ranks, 2) / 2, kLongestTransfer));
}

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

Prediction StepModel::run(std::span<const Job> jobs, std::int64_t credit, std::vector<std::int64_t>* done_times) const {
  std::int64_t all_ready = 0;
  for (const Job& job : jobs) {
    all_ready = std::max(all_ready, job.ready);
  }
  if (done_times != nullptr) {
    done_times->assign(jobs.size(), 0);
  }
  Line line(credit);
  Worker worker;
  std::int64_t earliest = 0;
  std::int64_t lateness = 0;
  std::int64_t last = 0;
  const auto done = [&](std::size_t job, std::int64_t end) {
    last = std::max(last, end);
    lateness = std::max(lateness, end - jobs[job].need);
    if (done_times != nullptr) {
      (*done_times)[job] = end;
    }
  };
  for (std::size_t next = 0; next < jobs.size() || !line.idle();) {
    std::optional<std::int64_t> start;
    if (next < jobs.size()) {
      const Job& job = jobs[next];
      earliest = std::max(earliest, job.ready == all_ready ? std::max(job.ready, backward_end_) : job.ready);
      start = line.start(job.payload, earliest);
    }
    if (start && (line.idle() || *start < line.next_gather())) {
      earliest = *start;
      worker.decode_until(*start, jobs, done);
      line.reduce(next, jobs[next].payload, worker.run(*start, jobs[next].encode),
                  halves_of(occupancy(jobs[next]) + handling_, exchanges(jobs[next]), exchange_latency_));
      ++next;
      continue;
    }
    const auto [job, at] = line.gather();
    worker.arrives(at, job);
  }
  worker.decode_until(kEndOfTime, jobs, done);
  return {step_us(lateness), to_us(lateness), to_us(last)};
}

std::int64_t StepModel::step_us(std::int64_t lateness) const {
  return to_us(after(forward_end_, std::max<std::int64_t>(lateness, 0)));
}

}  // namespace sirtaki::scheduler
