#include "launcher/links/measure.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <span>

#include "adapters/c/sirtaki.h"
#include "launcher/links/links_page.h"
#include "runtime/base/config/config_load.h"

namespace sirtaki::launcher {
namespace {

constexpr std::int64_t kWaitMs = 60'000;
constexpr std::int64_t kSmall = 8;  // bytes of a message that measures latency
constexpr int kRoundTrips = 15;
// Payloads grow until one takes long enough. The first of each size does not count: it takes the burst that traffic
// shapers allow, and the agreement of the ranks on its name. The fastest of the others does, because lost packets and
// other work on the hosts make a payload slower than its link, and nothing makes it faster.
constexpr int kPayloads = 3;
constexpr std::int64_t kFirstBytes = std::int64_t{256} << 10;
constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;
constexpr std::int64_t kGrowth = 4;
constexpr double kLongEnough = 0.08;
constexpr double kRoundTripsEnough = 4;  // a payload takes as many round trips, so that TCP has reached its rate
constexpr double kLeastPart = 0.125;     // a payload takes at least this part of its round trip
// A measurement leaves no trace on the disk of the user.
constexpr const char* kOptions = "timeline.path = \"\"\n";

Status status_of(sirtaki_status code) {
  return code == SIRTAKI_OK ? Status() : Status(static_cast<Code>(code), sirtaki_last_error());
}

// Sends `data` of `root` to all of `ranks`.
Status broadcast(const std::string& name, Rank root, std::span<const Rank> ranks, std::span<std::byte> data) {
  const std::int64_t bytes = std::ssize(data);
  sirtaki_request_args args{};
  args.struct_size = sizeof(args);
  args.op = SIRTAKI_BROADCAST;
  args.name = name.c_str();
  args.prescale = args.postscale = 1.0;
  args.root = root;
  args.ranks = ranks.data();
  args.ranks_count = static_cast<std::int32_t>(ranks.size());
  args.input.struct_size = sizeof(args.input);
  args.input.data = data.data();
  args.input.dtype = SIRTAKI_U8;
  args.input.device_type = SIRTAKI_CPU;
  args.input.ndim = 1;
  args.input.dims = &bytes;
  args.output = args.input;
  sirtaki_request request = 0;
  SRT_TRY(status_of(sirtaki_submit(&args, &request)));
  SRT_TRY(status_of(sirtaki_wait(request, kWaitMs)));
  sirtaki_release(request);
  return {};
}

// One end of a pair. Both make the same calls; times are those of the first host.
class PairOfHosts {
 public:
  explicit PairOfHosts(HostPair pair) : ranks_{pair.first, pair.second} {}

  Result<LinkReading> measure() {
    LinkReading reading;
    std::vector<double> times;
    SRT_TRY(round(kSmall, kSmall).status());
    for (int i = 0; i < kRoundTrips; ++i) {
      SRT_ASSIGN(const double seconds, round(kSmall, kSmall));
      times.push_back(seconds);
    }
    std::ranges::nth_element(times, times.begin() + kRoundTrips / 2);
    reading.round_trip = times[kRoundTrips / 2];
    SRT_ASSIGN(reading.there, rate(reading.round_trip, true));
    SRT_ASSIGN(reading.back, rate(reading.round_trip, false));
    return reading;
  }

 private:
  // Returns the time of a payload from the first host to the second, and of another one back.
  Result<double> round(std::int64_t there, std::int64_t back) {
    const auto began = std::chrono::steady_clock::now();
    SRT_TRY(send(ranks_.front(), there));
    SRT_TRY(send(ranks_.back(), back));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }

  Status send(Rank root, std::int64_t bytes) {
    memory_.resize(std::max(memory_.size(), static_cast<std::size_t>(bytes)));
    return broadcast("check.payload." + std::to_string(bytes) + (root == ranks_.front() ? ".there" : ".back"), root,
                     ranks_, std::span(memory_).first(static_cast<std::size_t>(bytes)));
  }

  Result<double> rate(double round_trip, bool there) {
    for (std::int64_t bytes = kFirstBytes;; bytes *= kGrowth) {
      double seconds = std::numeric_limits<double>::infinity();
      for (int i = 0; i < kPayloads; ++i) {
        SRT_ASSIGN(const double taken, there ? round(bytes, kSmall) : round(kSmall, bytes));
        seconds = i == 0 ? seconds : std::min(seconds, taken);
      }
      const double wanted = std::max(kLongEnough, kRoundTripsEnough * round_trip);
      std::array<std::byte, 1> enough = {std::byte(seconds - round_trip >= wanted || bytes >= kMostBytes)};
      SRT_TRY(broadcast("check.enough", ranks_.front(), ranks_, enough));
      if (enough.front() != std::byte(0)) {
        return static_cast<double>(bytes) / std::max(seconds - round_trip, seconds * kLeastPart);
      }
    }
  }

  const std::array<Rank, 2> ranks_;
  std::vector<std::byte> memory_;
};

Result<std::vector<LinkReading>> measure_pairs(const std::vector<std::string>& hosts) {
  const Rank self = sirtaki_rank();
  const std::vector<HostPair> pairs = measured_pairs(sirtaki_size());
  std::vector<LinkReading> readings;
  for (const HostPair& pair : pairs) {
    const auto& [first, second] = pair;
    if (self == 0) {
      std::fprintf(stderr, "sirtakirun: measuring the link between %s and %s (%zu of %zu)\n",
                   hosts.at(static_cast<std::size_t>(first)).c_str(),
                   hosts.at(static_cast<std::size_t>(second)).c_str(), readings.size() + 1, pairs.size());
    }
    LinkReading reading;
    if (self == first || self == second) {
      SRT_ASSIGN(reading, PairOfHosts(pair).measure());
    }
    SRT_TRY(broadcast("check.reading", first, {}, std::as_writable_bytes(std::span(&reading, 1))));
    readings.push_back(reading);
  }
  return readings;
}

Status run_rank(const std::vector<std::string>& hosts) {
  sirtaki_init_args args{};
  args.struct_size = sizeof(args);
  args.options_toml = kOptions;
  SRT_TRY(status_of(sirtaki_init(&args)));
  if (sirtaki_size() < 2 || sirtaki_size() != static_cast<int>(hosts.size())) {
    return invalid_argument("--measure-links is for the ranks that `sirtakirun --check` starts, one on each host");
  }
  const bool prints = sirtaki_rank() == 0;
  const auto readings = measure_pairs(hosts);
  SRT_TRY(readings.status());
  SRT_TRY(status_of(sirtaki_shutdown()));
  if (!prints) {
    return {};
  }
  std::fputs(links_table(hosts, *readings).c_str(), stdout);
  std::fflush(stdout);
  SRT_ASSIGN(const auto config, load_config(process_sources()));
  SRT_ASSIGN(const std::string advice, links_advice(weakest_link(*readings), static_cast<int>(hosts.size()), *config));
  std::fputs(advice.c_str(), stdout);
  return {};
}

// Returns which rank is on which host: two hosts may have one name, and errors of ranks know no other.
std::string places(const std::vector<std::string>& hosts) {
  std::string text;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    text += (rank == 0 ? "rank " : ", rank ") + std::to_string(rank) + " is on " + hosts[rank];
  }
  return text;
}

}  // namespace

int measure_links(const std::vector<std::string>& hosts) {
  const Status status = run_rank(hosts);
  if (!status.ok()) {
    std::fprintf(stderr, "sirtakirun: the links between the hosts cannot be measured: %s\n  (%s)\n",
                 std::string(status.text()).c_str(), places(hosts).c_str());
    sirtaki_shutdown();
    return 1;
  }
  return 0;
}

}  // namespace sirtaki::launcher
