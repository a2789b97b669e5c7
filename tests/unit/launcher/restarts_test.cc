#include "launcher/restarts.h"

#include <gtest/gtest.h>

namespace sirtaki::launcher {
namespace {

using std::chrono::seconds;

TEST(Restarts, PausesDoubleUpToAMinute) {
  Restarts restarts(8);
  for (const int pause : {1, 2, 4, 8, 16, 32, 60, 60}) {
    EXPECT_EQ(restarts.next(0, Duration::zero()), seconds(pause));
  }
  EXPECT_EQ(restarts.next(0, Duration::zero()), std::nullopt);
  EXPECT_EQ(restarts.next(1, Duration::zero()), seconds(1)) << "ranks have counts of their own";
}

TEST(Restarts, AProcessThatLastsIsForgiven) {
  Restarts restarts(2);
  for (int round = 0; round < 10; ++round) {
    EXPECT_EQ(restarts.next(3, kLastingStart), seconds(1));
    EXPECT_EQ(restarts.next(3, seconds(59)), seconds(2));
  }
  EXPECT_EQ(restarts.next(3, seconds(59)), std::nullopt);
  EXPECT_EQ(restarts.failures(3), 2) << "those before have lasted";
}

TEST(Restarts, APlaceOnAnotherHostBeginsAnew) {
  Restarts restarts(1);
  EXPECT_EQ(restarts.next(0, Duration::zero()), seconds(1));
  restarts.forget(0);
  EXPECT_EQ(restarts.next(0, Duration::zero()), seconds(1));
}

TEST(Restarts, NoneAtAllIsAChoice) {
  Restarts restarts(0);
  EXPECT_EQ(restarts.next(0, std::chrono::hours(1)), std::nullopt);
  EXPECT_EQ(restarts.failures(0), 0);
}

}  // namespace
}  // namespace sirtaki::launcher
