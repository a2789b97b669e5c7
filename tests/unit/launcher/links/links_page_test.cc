#include "launcher/links/links_page.h"

#include <gtest/gtest.h>

namespace sirtaki::launcher {
namespace {

constexpr double kMbit = 125'000;

TEST(LinksPage, EveryHostIsInTwoPairs) {
  EXPECT_TRUE(measured_pairs(1).empty());
  EXPECT_EQ(measured_pairs(2), (std::vector<HostPair>{{0, 1}}));
  EXPECT_EQ(measured_pairs(4), (std::vector<HostPair>{{0, 1}, {1, 2}, {2, 3}, {0, 3}}));
}

TEST(LinksPage, TheTableNamesTheSlowestPair) {
  const std::string table = links_table(
      {"a", "b", "node3"},
      {{0.0005, 900 * kMbit, 2500 * kMbit}, {0.0003, 95 * kMbit, 90 * kMbit}, {0.02, 100 * kMbit, 99 * kMbit}});
  EXPECT_EQ(table,
            "Links between hosts (payload of one connection)\n"
            "  a > b      round trip 0.5 ms, there 900 Mbit/s, back 2.5 Gbit/s\n"
            "  b > node3  round trip 0.3 ms, there 95 Mbit/s, back 90 Mbit/s  (slowest)\n"
            "  a > node3  round trip 20 ms, there 100 Mbit/s, back 99 Mbit/s\n");
}

TEST(LinksPage, ASinglePairIsNotCalledTheSlowest) {
  EXPECT_EQ(links_table({"a", "b"}, {{0.001, kMbit, kMbit}}).find("slowest"), std::string::npos);
}

TEST(LinksPage, AllHostsTogetherHaveTheLowestRateAndTheHighestLatency) {
  const auto link = weakest_link({{0.0005, 900 * kMbit, 80 * kMbit}, {0.002, 95 * kMbit, 90 * kMbit}});
  EXPECT_EQ(link.latency_ns, 1'000'000);
  EXPECT_EQ(link.bytes_per_second, static_cast<std::int64_t>(80 * kMbit));
}

std::string advice(std::int64_t mbit) {
  const auto text = links_advice({.latency_ns = 150'000, .bytes_per_second = mbit * 125'000}, 2, Config());
  EXPECT_TRUE(text) << text.status().to_string();
  return text ? *text : "";
}

TEST(LinksPage, ASlowLinkGetsASettingForEverySize) {
  const std::string text = advice(10);
  EXPECT_EQ(text.find("nothing to gain"), std::string::npos) << text;
  EXPECT_NE(text.find("x with --"), std::string::npos) << text;
  EXPECT_NE(text.find("sirtaki estimate MODEL.py --bandwidth 10.46Mbit --latency 0.150ms --ranks 2"), std::string::npos)
      << text;
}

TEST(LinksPage, AFastLinkHasNothingToGain) {
  const std::string text = advice(400'000);
  EXPECT_EQ(text.find("x with --"), std::string::npos) << text;
  EXPECT_NE(text.find("nothing to gain: dense gradients take"), std::string::npos) << text;
  // The command reads no exponents.
  EXPECT_NE(text.find("--bandwidth 418232.04Mbit"), std::string::npos) << text;
}

TEST(LinksPage, ARateThatRoundsToAThousandHasTheLargerUnit) {
  const std::string table = links_table({"a", "b"}, {{1.25, 999.7 * kMbit, 999.2 * kMbit}});
  EXPECT_NE(table.find("round trip 1250 ms, there 1 Gbit/s, back 999 Mbit/s"), std::string::npos) << table;
}

}  // namespace
}  // namespace sirtaki::launcher
