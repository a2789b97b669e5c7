#include "launcher/hosts/fleet.h"

#include <gtest/gtest.h>

namespace sirtaki::launcher {
namespace {

using std::chrono::seconds;
using Hosts = std::vector<Host>;
using Starts = std::vector<std::pair<Rank, std::string>>;
using Leaves = std::vector<Rank>;

class FleetTest : public ::testing::Test {
 protected:
  // All ranks have the state of the job.
  static std::vector<Fleet::Seat> seats(const std::vector<std::string>& hosts) {
    std::vector<Fleet::Seat> result;
    for (const std::string& host : hosts) {
      result.push_back({host, !host.empty()});
    }
    return result;
  }
  void ready(const Hosts& hosts) {
    fleet_.offer(hosts);
    for (const Host& host : hosts) {
      fleet_.set_ready(host.name, true);
    }
  }
  Starts starts(const std::vector<std::string>& hosts) const { return fleet_.starts(seats(hosts), now_); }
  Duration rest(const std::string& host, int first, int longest, Duration used = {}, double jitter = 0) {
    return fleet_.rest(host, seconds(first), seconds(longest), now_, used, jitter);
  }
  Leaves leaves(const std::vector<std::string>& hosts) const { return fleet_.leaves(seats(hosts)); }

  Fleet fleet_;
  TimePoint now_;
};

TEST_F(FleetTest, FillsVacantPlacesOnHostsWithRoom) {
  fleet_.offer({{"a", 2}, {"b", 3}});
  EXPECT_EQ(starts({"", ""}), Starts()) << "no host has answered";
  ready({{"a", 2}, {"b", 3}});
  EXPECT_EQ(starts({"a", "", "a", "", ""}), (Starts{{1, "b"}, {3, "b"}, {4, "b"}}));
  EXPECT_EQ(starts({"", "b", "", ""}), (Starts{{0, "a"}, {2, "a"}, {3, "b"}}));
  EXPECT_EQ(starts({"a", "b"}), Starts()) << "no place is vacant";
  fleet_.set_ready("b", false);
  EXPECT_EQ(starts({"a", "", ""}), (Starts{{1, "a"}}));
}

TEST_F(FleetTest, FillsNoPlaceThatIsGivenUp) {
  ready({{"a", 1}, {"b", 1}});
  const std::vector<Fleet::Seat> places = {{"a", true}, {"", false, true}, {""}};
  EXPECT_EQ(fleet_.starts(places, now_), (Starts{{2, "b"}}));
  fleet_.set_ready("b", false);
  EXPECT_EQ(fleet_.absent(places, now_), (Hosts{{"b", 1}}));
  EXPECT_EQ(fleet_.absent({{"a", true}, {"", false, true}}, now_), Hosts()) << "nobody would have a place there";
}

TEST_F(FleetTest, ClosesUnusedSlotsOfTheHostToo) {
  ready({{"a", 8}});
  fleet_.close_slot("a", seats({"a", "a", "a", ""}));
  EXPECT_EQ(starts({"a", "a", "a", ""}), Starts()) << "the next process would end as those before";
}

TEST_F(FleetTest, StartsNothingInClosedSlotsUntilTheHostIsOfferedAnew) {
  ready({{"a", 2}, {"b", 1}});
  fleet_.close_slot("a", seats({"a", "", ""}));
  EXPECT_EQ(starts({"a", "", ""}), (Starts{{1, "b"}}));
  fleet_.close_slot("a", seats({"", "", "b"}));
  fleet_.close_slot("elsewhere", seats({"", "", "b"}));
  EXPECT_EQ(starts({"", "", "b"}), Starts());
  fleet_.offer({{"a", 2}, {"b", 1}});
  EXPECT_EQ(starts({"", "", "b"}), Starts()) << "nothing has changed";
  fleet_.offer({{"b", 1}});
  fleet_.offer({{"a", 2}, {"b", 1}});
  EXPECT_EQ(starts({"", "", "b"}), (Starts{{0, "a"}, {1, "a"}}));
}

TEST_F(FleetTest, RanksLeaveHostsThatAreGoneOrSmaller) {
  ready({{"a", 2}, {"b", 2}});
  EXPECT_EQ(leaves({"a", "b", "a", "b"}), Leaves());
  fleet_.offer({{"a", 1}});
  EXPECT_EQ(leaves({"a", "b", "a", "b"}), (Leaves{1, 2, 3}));
  EXPECT_EQ(fleet_.slots("a"), 1);
  EXPECT_EQ(fleet_.slots("b"), 0);
  EXPECT_EQ(fleet_.slots("elsewhere"), 0);
  EXPECT_FALSE(fleet_.is_offered("b"));
}

TEST_F(FleetTest, ARankWithTheStateStaysUntilAnotherOneHasIt) {
  ready({{"a", 2}, {"b", 1}});
  fleet_.offer({{"b", 1}});
  EXPECT_EQ(leaves({"a", "a", ""}), Leaves{1});
  EXPECT_EQ(fleet_.leaves({{"a", true}, {""}, {"b", false}}), Leaves()) << "it has only been started";
  EXPECT_EQ(leaves({"a", "", "b"}), Leaves{0});
}

TEST_F(FleetTest, AsksOnlyForHostsThatAreNeeded) {
  fleet_.offer({{"a", 2}, {"b", 2}, {"c", 2}});
  EXPECT_EQ(fleet_.absent(seats({"", "", ""}), now_), (Hosts{{"a", 2}, {"b", 2}}));
  fleet_.set_pending("a");
  fleet_.set_pending("b");
  EXPECT_TRUE(fleet_.pending());
  EXPECT_EQ(fleet_.absent(seats({"", "", ""}), now_), Hosts());
  fleet_.set_ready("a", true);
  fleet_.set_ready("b", false);
  EXPECT_FALSE(fleet_.pending());
  EXPECT_EQ(fleet_.ready_slots(), 2);
  EXPECT_EQ(fleet_.absent(seats({"", "", ""}), now_), (Hosts{{"b", 2}}));
  EXPECT_EQ(fleet_.absent(seats({"a", "a"}), now_), Hosts());
}

TEST_F(FleetTest, AHostThatDoesNotAnswerHoldsNobodyUpAgain) {
  fleet_.offer({{"a", 1}, {"b", 1}});
  fleet_.set_pending("a");
  fleet_.set_pending("b");
  rest("a", 5, 60);
  fleet_.set_ready("a", false);
  fleet_.set_pending("a");
  EXPECT_TRUE(fleet_.pending()) << "b has not answered yet";
  fleet_.set_ready("b", true);
  EXPECT_FALSE(fleet_.pending());
  fleet_.offer({{"b", 1}, {"c", 1}});
  fleet_.set_pending("c");
  EXPECT_TRUE(fleet_.pending());
  fleet_.offer({{"b", 1}});
  EXPECT_FALSE(fleet_.pending()) << "nobody wants it any more";
}

TEST_F(FleetTest, AHostRestsLongerEachTime) {
  ready({{"a", 1}});
  EXPECT_EQ(rest("a", 5, 12), seconds(5));
  EXPECT_EQ(starts({""}), Starts());
  now_ += seconds(5);
  EXPECT_EQ(starts({""}), (Starts{{0, "a"}}));
  EXPECT_EQ(rest("a", 5, 12), seconds(10));
  now_ += seconds(10);
  EXPECT_EQ(rest("a", 5, 12), seconds(12));
  fleet_.set_ready("a", false);
  EXPECT_EQ(fleet_.absent(seats({""}), now_), Hosts());
  fleet_.offer({});
  fleet_.offer({{"a", 1}});
  EXPECT_EQ(fleet_.absent(seats({""}), now_), (Hosts{{"a", 1}})) << "it is another host, by the same name";
}

TEST_F(FleetTest, AHostThatIsUsedForLongHasRecovered) {
  ready({{"a", 1}});
  EXPECT_EQ(rest("a", 5, 60), seconds(5));
  now_ += seconds(5 + 600);
  EXPECT_EQ(rest("a", 5, 60, seconds(599)), seconds(10)) << "it had no rank for a while";
  now_ += seconds(10 + 600);
  EXPECT_EQ(rest("a", 5, 60, seconds(600)), seconds(5));
  now_ += seconds(5);
  EXPECT_EQ(rest("a", 5, 60), seconds(10));
  EXPECT_EQ(rest("a", 5, 60, seconds(600)), seconds(10)) << "it rests already";
}

TEST_F(FleetTest, TwoReasonsMakeOneRestWhichTheLongerOneDecides) {
  ready({{"a", 1}});
  EXPECT_EQ(rest("a", 60, 300), seconds(60));
  now_ += seconds(1);
  EXPECT_EQ(rest("a", 10, 60), seconds(59)) << "its agent is gone, too";
  now_ += seconds(59);
  EXPECT_EQ(rest("a", 60, 300), seconds(120));
}

TEST_F(FleetTest, JitterMakesARestLonger) {
  ready({{"a", 1}});
  EXPECT_EQ(rest("a", 4, 60, {}, 1), seconds(5));
  now_ += seconds(5);
  EXPECT_EQ(rest("a", 4, 60, {}, 0.5), seconds(9));
  now_ += seconds(9);
  EXPECT_EQ(rest("a", 4, 18, {}, 1), seconds(18)) << "but not longer than the longest";
}

TEST_F(FleetTest, AsksForAnotherHostWhileOneRests) {
  ready({{"a", 1}});
  rest("a", 4, 60);
  fleet_.offer({{"a", 1}, {"b", 1}});
  EXPECT_EQ(fleet_.absent(seats({""}), now_), (Hosts{{"b", 1}}));
  EXPECT_EQ(fleet_.room(seats({""})), 2) << "one is filled later";
}

TEST_F(FleetTest, AnExcludedHostIsNeverUsedAgain) {
  ready({{"a", 1}, {"b", 1}});
  fleet_.bar("a", TimePoint::max(), "is out");
  EXPECT_EQ(starts({"", ""}), (Starts{{0, "b"}}));
  EXPECT_EQ(fleet_.room(seats({"", ""})), 1);
  EXPECT_EQ(fleet_.room(seats({"", "b"})), 0);
  fleet_.offer({{"b", 1}});
  ready({{"a", 1}, {"b", 1}});
  EXPECT_EQ(fleet_.room(seats({"", "b"})), 0);
}

TEST_F(FleetTest, RefusesAHostForAWhileAlsoIfItIsGoneMeanwhile) {
  ready({{"a", 1}, {"b", 1}});
  fleet_.bar("a", now_ + seconds(60), "rests");
  fleet_.bar("elsewhere", now_ + seconds(60), "rests");
  EXPECT_EQ(fleet_.refusal("a", now_), "rests");
  EXPECT_EQ(fleet_.refusal("b", now_), "");
  EXPECT_EQ(fleet_.refusal("elsewhere", now_), "");
  EXPECT_EQ(fleet_.room(seats({""})), 2) << "it keeps its slots";
  fleet_.offer({{"b", 1}});
  EXPECT_FALSE(fleet_.forget("a", now_));
  EXPECT_EQ(fleet_.refusal("a", now_ + seconds(59)), "rests");
  EXPECT_EQ(fleet_.refusal("a", now_ + seconds(60)), "");
  fleet_.bar("a", TimePoint::max(), "is out");
  EXPECT_FALSE(fleet_.forget("a", now_ + std::chrono::hours(10000)));
}

TEST_F(FleetTest, ForgetsHostsThatAreGone) {
  ready({{"a", 1}, {"b", 1}});
  EXPECT_FALSE(fleet_.forget("a", now_)) << "it is offered";
  fleet_.offer({{"b", 1}});
  EXPECT_TRUE(fleet_.forget("a", now_));
  EXPECT_TRUE(fleet_.forget("a", now_));
  ready({{"a", 1}, {"b", 1}});
  EXPECT_EQ(starts({"", ""}), (Starts{{0, "b"}, {1, "a"}})) << "it comes like one that was never there";
}

TEST_F(FleetTest, DescribesItself) {
  fleet_.offer({{"a", 1}});
  EXPECT_EQ(fleet_.describe(), "1 host with 1 slot (a:1)");
  fleet_.offer({{"b", 2}, {"c", 1}});
  EXPECT_EQ(fleet_.describe(), "2 hosts with 3 slots (b:2, c:1)");
  fleet_.offer({});
  EXPECT_EQ(fleet_.describe(), "0 hosts with 0 slots");
}

}  // namespace
}  // namespace sirtaki::launcher
