#include "runtime/engine/stream/plan/link_probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "tests/world/sim_loop.h"

namespace sirtaki::engine {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

struct Link {
  double bytes_per_second = 1e9;
  Duration latency = microseconds(100);  // delay of one exchange
  double burst_bytes = 0;                // pass without delay before the rate applies
  Duration most_late = {};               // an exchange takes up to that much longer
};

// Rank 0 of four, or of those on `hosts`, which sum first. Exchanges take the time of the link; ranks are equally fast,
// so a maximum is the own value.
class ShapedLink final : public net::Collectives {
 public:
  ShapedLink(Loop& loop, const Link& link, const net::Hosts& hosts = {})
      : loop_(loop), link_(link), burst_(link.burst_bytes) {
    groups_.hosts = hosts;
  }
  net::Caps caps() const override { return {}; }
  Rank rank() const override { return 0; }
  int size() const override {
    const auto& hosts = groups_.hosts.ranks();
    return std::accumulate(hosts.begin(), hosts.end(), hosts.empty() ? 4 : 0,
                           [](int sum, const auto& ranks) { return sum + static_cast<int>(ranks.size()); });
  }
  const net::HostGroups* host_groups() const override { return groups_.hosts.count() > 0 ? &groups_ : nullptr; }
  void start(net::CollectiveArgs args, Done done) override {
    const int shares = std::max(groups_.hosts.shares(), 1);
    const int ranks = shares > 1 ? groups_.hosts.count() : size();
    const std::size_t numbers = args.out.size() / sizeof(std::int64_t) / static_cast<std::size_t>(shares);
    // Collectives send all to all where they may, which takes half the latency.
    const bool once = args.out.size() <= std::min<std::size_t>(args.exchange_bytes, 16 << 10) ||
                      numbers < static_cast<std::size_t>(ranks);
    const double bytes = (once ? ranks - 1 : 2.0 * (ranks - 1) / ranks) * static_cast<double>(args.out.size());
    const double shaped = std::max(bytes - burst_, 0.0);
    burst_ = std::max(burst_ - bytes, 0.0);
    sent_ += bytes;
    ++exchanges_;
    const auto time =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(shaped / link_.bytes_per_second));
    const Duration late(link_.most_late.count() == 0 ? 0 : random_() % link_.most_late.count());
    loop_.after((once ? 1 : 2) * link_.latency + time + late,
                [this, done = std::move(done)]() mutable { done(failure_); });
  }
  void abort(Status cause) override { failure_ = std::move(cause); }
  void cancel(net::TagGroup /*tags*/, Status /*cause*/) override {}

  double sent() const { return sent_; }
  int exchanges() const { return exchanges_; }

 private:
  Loop& loop_;
  const Link link_;
  net::HostGroups groups_;
  std::mt19937_64 random_{1};
  double burst_;
  double sent_ = 0;
  int exchanges_ = 0;
  Status failure_;
};

class LinkProbeTest : public testing::Test {
 protected:
  // Returns the result, if the probe ended.
  std::optional<Result<scheduler::StepProfile>> probe(const Link& link, const scheduler::CodecCosts& costs = {},
                                                      const net::Hosts& hosts = {}) {
    net_ = std::make_unique<ShapedLink>(*loop_, link, hosts);
    probe_ = std::make_unique<LinkProbe>(StreamId(1), *loop_, *net_, costs);
    began_ = clock_.now();
    probe_->run([this](Result<scheduler::StepProfile> result) { result_ = std::move(result); });
    while (!result_ && clock_.step()) {
    }
    return result_;
  }
  Duration took() const { return clock_.now() - began_; }

  world::SimClock clock_{1};
  std::unique_ptr<world::SimLoop> loop_ = clock_.make_loop();
  std::unique_ptr<ShapedLink> net_;
  std::unique_ptr<LinkProbe> probe_;
  TimePoint began_;
  std::optional<Result<scheduler::StepProfile>> result_;
};

TEST_F(LinkProbeTest, MeasuresSlowAndFastLinksInAShortTime) {
  for (const double mbit : {1.0, 5.0, 20.0, 100.0, 1000.0, 25'000.0}) {
    result_.reset();
    const Link link{mbit * 125'000, microseconds(200), 0};
    const auto result = probe(link);
    ASSERT_TRUE(result && *result) << mbit;
    EXPECT_NEAR(static_cast<double>((*result)->bytes_per_second), link.bytes_per_second, 0.05 * link.bytes_per_second);
    EXPECT_NEAR(static_cast<double>((*result)->latency_ns), 200'000, 10'000) << mbit;
    EXPECT_LT(took(), std::chrono::milliseconds(mbit < 5 ? 900 : 250)) << mbit;
  }
}

// The owners of a share of too few numbers send all to all, as ranks do.
TEST_F(LinkProbeTest, MeasuresTheLatencyOfTwoExchangesWhateverTheHosts) {
  for (const net::Hosts& hosts : {net::Hosts({{0, 1, 2, 3}, {4, 5}, {6, 7}}), net::Hosts({{0, 1}, {2, 3}, {4, 5}}),
                                  net::Hosts({{0, 1, 2, 3, 4, 5, 6}, {7}})}) {
    for (const double mbit : {20.0, 1000.0}) {
      result_.reset();
      const Link link{mbit * 125'000, microseconds(200), 0};
      const auto result = probe(link, {}, hosts);
      ASSERT_TRUE(result && *result);
      EXPECT_NEAR(static_cast<double>((*result)->bytes_per_second), link.bytes_per_second, 0.05 * link.bytes_per_second)
          << hosts.count() << " hosts, " << mbit;
      EXPECT_NEAR(static_cast<double>((*result)->latency_ns), 200'000, 10'000) << hosts.count() << " hosts, " << mbit;
    }
  }
}

TEST_F(LinkProbeTest, TheBurstOfAShaperDoesNotCount) {
  for (const double mbit : {5.0, 35.0, 100.0}) {
    result_.reset();
    const Link link{mbit * 125'000, microseconds(100), 131'072};
    const auto result = probe(link);
    ASSERT_TRUE(result && *result) << mbit;
    EXPECT_NEAR(static_cast<double>((*result)->bytes_per_second), link.bytes_per_second, 0.1 * link.bytes_per_second);
  }
}

TEST_F(LinkProbeTest, MeasuresLinksWhoseLatencyHidesShortPayloads) {
  for (const double mbit : {5.0, 20.0, 100.0, 1000.0}) {
    for (const Duration latency : {milliseconds(5), milliseconds(20), milliseconds(80)}) {
      result_.reset();
      const Link link{mbit * 125'000, latency, 131'072, milliseconds(4)};
      const auto result = probe(link);
      ASSERT_TRUE(result && *result) << mbit;
      const double ratio = static_cast<double>((*result)->bytes_per_second) / link.bytes_per_second;
      // A payload of 1 MiB is short on a link of 1 Gbit/s and 80 ms.
      EXPECT_GT(ratio, mbit < 1000 ? 0.6 : 0.4) << mbit << " Mbit/s, " << latency.count();
      EXPECT_LT(ratio, 1.5) << mbit << " Mbit/s, " << latency.count();
      EXPECT_NEAR(static_cast<double>((*result)->latency_ns), static_cast<double>(latency.count()), 3e6);
      EXPECT_LT(took(), milliseconds(1500) + 20 * (2 * latency)) << mbit;
    }
  }
}

TEST_F(LinkProbeTest, HandsOnTheCostsOfCodecs) {
  scheduler::CodecCosts costs{};
  costs.front() = {7, 9};
  const auto result = probe({}, costs);
  ASSERT_TRUE(result && *result);
  EXPECT_EQ((*result)->codec_costs, costs);
}

TEST_F(LinkProbeTest, EndsWithTheErrorOfTheCollectives) {
  net_ = std::make_unique<ShapedLink>(*loop_, Link{});
  net_->abort({Code::kPeerLost, "rank 2 is lost"});
  probe_ = std::make_unique<LinkProbe>(StreamId(1), *loop_, *net_, scheduler::CodecCosts{});
  probe_->run([this](Result<scheduler::StepProfile> result) { result_ = std::move(result); });
  while (clock_.step()) {
  }
  ASSERT_TRUE(result_);
  EXPECT_EQ(result_->status().code(), Code::kPeerLost);
  EXPECT_EQ(net_->exchanges(), 1);
}

TEST_F(LinkProbeTest, MayBeDestroyedDuringAnExchange) {
  net_ = std::make_unique<ShapedLink>(*loop_, Link{});
  probe_ = std::make_unique<LinkProbe>(StreamId(1), *loop_, *net_, scheduler::CodecCosts{});
  probe_->run([this](Result<scheduler::StepProfile> result) { result_ = std::move(result); });
  probe_.reset();
  while (clock_.step()) {
  }
  EXPECT_FALSE(result_);
}

}  // namespace
}  // namespace sirtaki::engine
