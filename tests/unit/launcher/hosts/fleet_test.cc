#include "launcher/hosts/fleet.h"

#include <gtest/gtest.h>

namespace sirtaki::launcher {
namespace {

using Starts = std::vector<std::pair<Rank, std::string>>;

TEST(Fleet, FillsVacantPlacesOnHostsWithRoom) {
  Fleet fleet;
  fleet.offer({{"a", 2}, {"b", 3}});
  EXPECT_EQ(fleet.moves({"", ""}).starts, Starts()) << "no host has answered";
  fleet.set_ready("a", true);
  fleet.set_ready("b", true);
  EXPECT_EQ(fleet.moves({"a", "", "a", "", ""}).starts, (Starts{{1, "b"}, {3, "b"}, {4, "b"}}));
  EXPECT_EQ(fleet.moves({"", "b", "", ""}).starts, (Starts{{0, "a"}, {2, "a"}, {3, "b"}}));
  EXPECT_EQ(fleet.moves({"a", "b"}).starts, Starts()) << "no place is vacant";
  fleet.set_ready("b", false);
  EXPECT_EQ(fleet.moves({"a", "", ""}).starts, (Starts{{1, "a"}}));
}

TEST(Fleet, StartsNothingInClosedSlots) {
  Fleet fleet;
  fleet.offer({{"a", 2}, {"b", 1}});
  fleet.set_ready("a", true);
  fleet.set_ready("b", true);
  fleet.close_slot("a");
  EXPECT_EQ(fleet.moves({"a", "", ""}).starts, (Starts{{1, "b"}}));
  fleet.close_slot("a");
  fleet.close_slot("elsewhere");
  EXPECT_EQ(fleet.moves({"", "", "b"}).starts, Starts());
}

}  // namespace
}  // namespace sirtaki::launcher
