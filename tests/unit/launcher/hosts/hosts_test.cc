#include "launcher/hosts/hosts.h"

#include <gtest/gtest.h>

namespace sirtaki::launcher {
namespace {

using Hosts = std::vector<Host>;

bool only_localhost(const std::string& name) {
  return name == "localhost" || name == "127.0.0.1";
}

std::string error_of(const Status& status) {
  return std::string(status.text());
}

TEST(HostList, ReadsNamesSlotsAndBrackets) {
  const auto hosts = parse_host_list("a:2, b ,[fd00::2]:4,user@c:1,[::1]");
  ASSERT_TRUE(hosts);
  EXPECT_EQ(*hosts, (Hosts{{"a", 2}, {"b", 1}, {"fd00::2", 4}, {"user@c", 1}, {"::1", 1}}));
}

TEST(HostList, AddsUpAHostNamedTwice) {
  const auto hosts = parse_host_list("a:2,b:1,a:3");
  ASSERT_TRUE(hosts);
  EXPECT_EQ(*hosts, (Hosts{{"a", 5}, {"b", 1}}));
}

TEST(HostList, RefusesWhatIsNoHost) {
  for (const char* text :
       {"", "a:", "a:0", "a:-1", "a:x", "a:2x", ":2", ",", "a,,b", "[fd00::2", "[fd00::2]x", "fd00::2",
        "-oProxyCommand=x", "a b:2", "a;rm:1", "a:99999999999999999999", "[fd00::2]:", "[-x]:1"}) {
    EXPECT_FALSE(parse_host_list(text)) << text;
  }
}

TEST(HostList, SaysHowToWriteAnIpv6Address) {
  EXPECT_NE(error_of(parse_host_list("fd00::2").status()).find("[fd00::2]:slots"), std::string::npos);
}

TEST(Hostfile, ReadsBothFormsCommentsAndBlankLines) {
  const auto hosts = parse_hostfile("# all\n\na slots=2\r\nb:3 # old\n  c  \n[fd00::9] slots = 4\n", "hosts");
  ASSERT_TRUE(hosts);
  EXPECT_EQ(*hosts, (Hosts{{"a", 2}, {"b", 3}, {"c", 1}, {"fd00::9", 4}}));
}

TEST(Hostfile, NamesFileAndLineOfAMistake) {
  const auto hosts = parse_hostfile("a slots=2\nb slots=two\n", "hosts.txt");
  ASSERT_FALSE(hosts);
  EXPECT_NE(error_of(hosts.status()).find("hosts.txt:2: "), std::string::npos);
  EXPECT_FALSE(parse_hostfile("a max_slots=2\n", "h"));
  EXPECT_FALSE(parse_hostfile("a slots\n", "h"));
  EXPECT_FALSE(parse_hostfile("# nothing\n", "h"));
  EXPECT_FALSE(parse_hostfile("", "h"));
}

TEST(Placement, NpWinsOverSlots) {
  const auto placed = place_ranks({{"localhost", 4}}, 2, only_localhost);
  ASSERT_TRUE(placed);
  ASSERT_EQ(placed->size(), 1U);
  EXPECT_EQ(placed->front().ranks, 2);
  EXPECT_TRUE(placed->front().local);
}

TEST(Placement, WithoutNpEverySlotGetsARank) {
  const auto placed = place_ranks({{"a", 2}, {"b", 3}}, std::nullopt, only_localhost);
  ASSERT_TRUE(placed);
  ASSERT_EQ(placed->size(), 2U);
  EXPECT_EQ((*placed)[1].first_rank, 2);
  EXPECT_EQ((*placed)[1].ranks, 3);
  EXPECT_FALSE((*placed)[0].local);
}

TEST(Placement, LeavesHostsWithoutRanksOut) {
  const auto placed = place_ranks({{"a", 2}, {"b", 2}}, 2, only_localhost);
  ASSERT_TRUE(placed);
  EXPECT_EQ(placed->size(), 1U);
}

TEST(Placement, TakesHostsForRanksThatComeLater) {
  const std::vector<Host> hosts = {{"a", 2}, {"b", 2}, {"c", 2}};
  auto placed = place_ranks(hosts, 1, only_localhost, {.most = 3});
  ASSERT_TRUE(placed);
  ASSERT_EQ(placed->size(), 2U) << "the third host could never get a rank";
  EXPECT_EQ((*placed)[0].ranks, 1);
  EXPECT_EQ((*placed)[0].slots, 2);
  EXPECT_EQ((*placed)[1].ranks, 0);
  placed = place_ranks(hosts, std::nullopt, only_localhost, {.most = 3});
  ASSERT_TRUE(placed);
  EXPECT_EQ((*placed)[1].ranks, 1) << "the slots are more than the most ranks";
  placed = place_ranks({}, 2, only_localhost, {.most = 4});
  ASSERT_TRUE(placed);
  EXPECT_EQ(placed->front().ranks, 2);
  EXPECT_EQ(placed->front().slots, 4);
}

TEST(Placement, SparesTakeFreeSlotsAndElseTheHostsWithTheFewest) {
  auto placed = place_ranks({{"a", 3}, {"b", 2}, {"c", 2}}, 4, only_localhost, {.most = 6});
  ASSERT_TRUE(placed);
  add_spare_slots(*placed, 6);
  ASSERT_EQ(placed->size(), 3U) << "a spare may start on the third host";
  EXPECT_EQ((*placed)[0].spare_slots + (*placed)[1].spare_slots + (*placed)[2].spare_slots, 0);
  add_spare_slots(*placed, 9);
  EXPECT_EQ((*placed)[0].slots, 3);
  EXPECT_EQ((*placed)[1].slots, 3);
  EXPECT_EQ((*placed)[1].spare_slots, 1);
  EXPECT_EQ((*placed)[2].spare_slots, 1);
}

TEST(Placement, SaysWhichSlotsAreThereWhenTheyAreTooFew) {
  const auto placed = place_ranks({{"a", 2}, {"b", 1}}, 4, only_localhost);
  ASSERT_FALSE(placed);
  EXPECT_NE(error_of(placed.status()).find("offer 3 (a:2, b:1)"), std::string::npos);
}

TEST(Placement, TakesAllNamesOfThisMachineForOneHost) {
  const auto placed = place_ranks({{"localhost", 1}, {"a", 1}, {"127.0.0.1", 2}}, std::nullopt, only_localhost);
  ASSERT_TRUE(placed);
  ASSERT_EQ(placed->size(), 2U);
  EXPECT_EQ((*placed)[0].host, "localhost");
  EXPECT_EQ((*placed)[0].ranks, 3);
  EXPECT_EQ((*placed)[1].first_rank, 3);
}

TEST(Placement, AsksOnceWhetherAHostIsThisMachine) {
  std::vector<std::string> asked;
  const auto is_local = [&asked](const std::string& name) {
    asked.push_back(name);
    return only_localhost(name);
  };
  ASSERT_TRUE(place_ranks({{"localhost", 1}, {"a", 2}}, std::nullopt, is_local));
  EXPECT_EQ(asked, (std::vector<std::string>{"localhost", "a"})) << "a slow name server answers each time anew";
}

TEST(Placement, KeepsTheNamesOfThisMachineApartIfAskedTo) {
  const auto placed = place_ranks({{"localhost", 1}, {"127.0.0.1", 2}}, std::nullopt, only_localhost, {.apart = true});
  ASSERT_TRUE(placed);
  ASSERT_EQ(placed->size(), 2U);
  EXPECT_EQ((*placed)[1].host, "127.0.0.1");
  EXPECT_TRUE((*placed)[1].local);
}

TEST(Placement, NeedsToKnowHowMany) {
  EXPECT_FALSE(place_ranks({}, std::nullopt, only_localhost));
  EXPECT_FALSE(place_ranks({}, 0, only_localhost));
  EXPECT_FALSE(place_ranks({{"a", 2}}, -3, only_localhost));
  EXPECT_TRUE(place_ranks({}, 7, only_localhost));
}

TEST(RankNumbers, ALaterRankTakesTheSmallestFreePlaceOfItsHost) {
  const RankNumbers first{0, 2, 0, 2};
  const RankNumbers second{1, 2, 0, 1};
  EXPECT_EQ(numbers_beside({{"a", first}, {"a", second}}, "b"), (RankNumbers{0, 1, 1, 2}));
  EXPECT_EQ(numbers_beside({{"a", first}, {"a", second}}, "a"), (RankNumbers{2, 3, 0, 1}));
  EXPECT_EQ(numbers_beside({{"a", second}, {"b", first}}, "a"), (RankNumbers{0, 2, 1, 2}));
  EXPECT_EQ(numbers_beside({}, "a"), RankNumbers());
}

TEST(OmpThreads, ShareTheCoresAndAreAtLeastOne) {
  EXPECT_EQ(omp_threads(8, 2), 4);
  EXPECT_EQ(omp_threads(8, 3), 2);
  EXPECT_EQ(omp_threads(2, 4), 1);
  EXPECT_EQ(omp_threads(1, 1), 1);
}

TEST(RankNumbers, CountRanksOfAHostAndHostsWithAsManyRanks) {
  EXPECT_EQ(rank_numbers({"a"}), (std::vector<RankNumbers>{{0, 1, 0, 1}}));
  EXPECT_EQ(rank_numbers({"a", "a", "b", "c", "c"}),
            (std::vector<RankNumbers>{{0, 2, 0, 3}, {1, 2, 0, 2}, {0, 1, 1, 3}, {0, 2, 2, 3}, {1, 2, 1, 2}}));
  // One machine under two names.
  EXPECT_EQ(rank_numbers({"a", "b", "a"}), (std::vector<RankNumbers>{{0, 2, 0, 2}, {0, 1, 1, 2}, {1, 2, 0, 1}}));
}

}  // namespace
}  // namespace sirtaki::launcher
