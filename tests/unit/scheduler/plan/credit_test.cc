#include "scheduler/plan/credit.h"

#include <gtest/gtest.h>

#include <limits>

#include "runtime/base/check.h"

namespace sirtaki::scheduler {
namespace {

TEST(Credit, HoldsTheLimit) {
  Credit credit(100);
  credit.take(60);
  EXPECT_TRUE(credit.fits(40));
  EXPECT_FALSE(credit.fits(41));
  EXPECT_THROW(credit.take(41), BugError);
  credit.take(40);
  EXPECT_EQ(credit.in_flight_bytes(), 100);
  EXPECT_TRUE(credit.fits(0));
  credit.give_back(60);
  EXPECT_EQ(credit.in_flight_bytes(), 40);
  EXPECT_TRUE(credit.fits(60));
}

TEST(Credit, LetsAnOversizePayloadGoAlone) {
  Credit credit(100);
  EXPECT_TRUE(credit.fits(std::numeric_limits<std::int64_t>::max()));
  credit.take(500);
  EXPECT_FALSE(credit.fits(0));
  credit.give_back(500);
  EXPECT_TRUE(credit.fits(500));
  credit.take(1);
  EXPECT_FALSE(credit.fits(500));
}

TEST(Credit, CountsAnEmptyPayloadAsInFlight) {
  Credit credit(100);
  credit.take(0);
  EXPECT_EQ(credit.in_flight(), 1);
  EXPECT_FALSE(credit.fits(101));
  credit.give_back(0);
  EXPECT_TRUE(credit.fits(101));
}

TEST(Credit, RefusesToGiveBackMoreThanWasTaken) {
  Credit credit(100);
  EXPECT_THROW(credit.give_back(0), BugError);
  credit.take(10);
  EXPECT_THROW(credit.give_back(11), BugError);
  credit.reset();
  EXPECT_EQ(credit.in_flight_bytes(), 0);
  EXPECT_EQ(credit.in_flight(), 0);
}

}  // namespace
}  // namespace sirtaki::scheduler
