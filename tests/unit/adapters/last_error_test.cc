#include "adapters/c/last_error.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace sirtaki::adapters {
namespace {

TEST(LastErrorTest, KeepsTextRankAndTensorOfTheThread) {
  EXPECT_EQ(report(Status(Code::kMismatch, "they differ", Blame{3, "weights"})), SIRTAKI_MISMATCH);
  EXPECT_STREQ(last_error_text(), "they differ");
  EXPECT_EQ(last_error_rank(), 3);
  EXPECT_STREQ(last_error_tensor(), "weights");
  std::string elsewhere = "unset";
  std::thread([&] { elsewhere = last_error_text(); }).join();
  EXPECT_EQ(elsewhere, "");
  EXPECT_EQ(report(Status()), SIRTAKI_OK);
  EXPECT_STREQ(last_error_text(), "they differ");
}

TEST(LastErrorTest, ExceptionsBecomeFailures) {
  EXPECT_EQ(guarded([]() -> Status { throw std::bad_alloc(); }), SIRTAKI_EXHAUSTED);
  EXPECT_EQ(guarded([]() -> Status { throw std::runtime_error("odd"); }), SIRTAKI_BUG);
  EXPECT_NE(std::string(last_error_text()).find("odd"), std::string::npos);
  EXPECT_EQ(guarded([]() -> Status { throw 7; }), SIRTAKI_BUG);
  EXPECT_EQ(guarded([]() -> Status {
              SRT_CHECK(1 > 2);
              return {};
            }),
            SIRTAKI_BUG);
  EXPECT_NE(std::string(last_error_text()).find("1 > 2"), std::string::npos);
}

}  // namespace
}  // namespace sirtaki::adapters
